"""The formats of JSON Schema that are enforced, as patterns of ECMA-262.

They are the ten that llguidance enforces (guidance-ai/llguidance, docs/json_schema.md),
from RFC 3339 (dates and times, without leap seconds), its appendix A (durations), RFC
5321 (mailboxes), RFC 1123 (host names), RFC 4291 (IPv6), RFC 4122 and RFC 3986 (without
hosts in brackets: IPv6 there would make the automaton ten times as large), and further
ones of JSON Schema that are regular: references of RFC 3986, IRIs of RFC 3987 (of the
basic plane), templates of RFC 6570 and pointers of RFC 6901.
"""


def _either(*options: str) -> str:
    return f"(?:{'|'.join(options)})"


_LEAP = _either(
    r"\d\d(?:0[48]|[2468][048]|[13579][26])",
    r"(?:[02468][048]|[13579][26])00",
)
_DATE = _either(
    r"\d{4}-(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])",
    r"\d{4}-(?:0[469]|11)-(?:0[1-9]|[12]\d|30)",
    r"\d{4}-02-(?:0[1-9]|1\d|2[0-8])",
    rf"{_LEAP}-02-29",
)
_HOUR = r"(?:[01]\d|2[0-3]):[0-5]\d"
_TIME = rf"{_HOUR}:[0-5]\d(?:\.\d+)?(?:[zZ]|[+-]{_HOUR})"
_CLOCK = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DAYS = r"(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"(?:{_OCTET}\.){{3}}{_OCTET}"
_WORD = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]+"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_DOMAIN = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_DOMAINS = rf"{_DOMAIN}(?:\.{_DOMAIN})*"


def _ipv6() -> str:
    hexes = "[0-9a-fA-F]{1,4}"
    last = _either(f"{hexes}:{hexes}", _IPV4)  # 32 bits
    forms = [f"(?:{hexes}:){{6}}{last}", f"::(?:{hexes}:){{5}}{last}"]
    for after in range(4, -1, -1):  # groups between "::" and the last 32 bits
        before = f"(?:(?:{hexes}:){{0,{4 - after}}}{hexes})?"
        forms.append(f"{before}::(?:{hexes}:){{{after}}}{last}")
    forms.append(f"(?:(?:{hexes}:){{0,5}}{hexes})?::{hexes}")
    forms.append(f"(?:(?:{hexes}:){{0,6}}{hexes})?::")
    return _either(*forms)


_CODE = "%[0-9a-fA-F]{2}"
_BEYOND = r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef"  # ASCII, in IRIs


def _uri(beyond: str = "", is_reference: bool = False) -> str:
    """Return the pattern of a URI, or of one or a reference to one."""
    code = _CODE
    safe = rf"a-zA-Z0-9\-._~!$&'()*+,;={beyond}"
    user = f"(?:[{safe}:]|{code})*"
    name = f"(?:[{safe}]|{code})*"
    part = f"(?:[{safe}:@]|{code})"
    path = f"(?:/{part}*)*"
    hierarchy = _either(
        f"//(?:{user}@)?{name}(?::[0-9]*)?{path}",
        f"/(?:{part}+{path})?",
        f"{part}+{path}",
        "",
    )
    tail = rf"(?:[{safe}:@/?]|{code})*"
    start = rf"[a-zA-Z][a-zA-Z0-9+\-.]*:{hierarchy}"
    if is_reference:
        relative = _either(
            f"//(?:{user}@)?{name}(?::[0-9]*)?{path}",
            f"/(?:{part}+{path})?",
            f"(?:[{safe}@]|{code})+{path}",
            "",
        )
        start = _either(start, relative)
    return rf"{start}(?:\?{tail})?(?:#{tail})?"


def _template() -> str:
    """Return the pattern of RFC 6570, sections 2.1 to 2.4."""
    letter = f"(?:[a-zA-Z0-9_]|{_CODE})"
    variable = rf"{letter}(?:\.?{letter})*(?::[1-9][0-9]{{0,3}}|\*)?"
    expression = rf"\{{[+#./;?&=,!@|]?{variable}(?:,{variable})*\}}"
    literal = rf"[!#$&(-;=?-\[\]_a-z~{_BEYOND}]"
    return f"(?:{literal}|{_CODE}|{expression})*"


_POINTER = r"(?:/(?:[^~/]|~[01])*)*"


_WHOLE = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "duration": rf"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|\d+W)",
    "email": rf"{_WORD}(?:\.{_WORD})*@(?:{_DOMAINS}|\[{_IPV4}\])",
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "uuid": r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "uri": _uri(),
    "uri-reference": _uri(is_reference=True),
    "iri": _uri(_BEYOND),
    "iri-reference": _uri(_BEYOND, is_reference=True),
    "uri-template": _template(),
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:#|{_POINTER})",
}
FORMATS = {name: f"^(?:{pattern})$" for name, pattern in _WHOLE.items()}
