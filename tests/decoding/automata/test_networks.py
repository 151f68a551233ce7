"""Networks without empty values and left recursion, by the words that they read."""

from decoding.automata import grammar_syntax, network_building, networks


def net_of(source: str) -> networks.Network:
    return network_building.network_of(grammar_syntax.parse_rules(source, "root"))


def begins(net: networks.Network) -> dict[str, set[str]]:
    """The rules that each reached rule calls before it has read a byte."""
    return {
        net.names[rule]: {
            net.names[callee]
            for state in net.silently(net.start[rule])
            for callee, _ in net.calls[state]
        }
        for rule in range(len(net.names))
    }


LEFT = """root ::= root "+" term | term
term ::= blank call "x" | "n"
call ::= term "(" root ")"
blank ::= "" | " "
"""


def test_no_rule_begins_with_itself():
    left = begins(net_of(LEFT))
    for name, after in left.items():
        reached, todo = set(after), list(after)
        while todo:
            fresh = left[todo.pop()] - reached
            reached |= fresh
            todo += fresh
        assert name not in reached


def test_fault_left_recursion_is_left_in(monkeypatch):
    """Planted: without the loops, a rule begins with itself."""
    monkeypatch.setattr(network_building, "loops", lambda net: net)
    assert "root" in begins(net_of(LEFT))["root"]


def test_no_rule_but_the_text_reads_the_empty_text():
    net = net_of('root ::= a a\na ::= b | "x" root\nb ::= "" | b "y"?\n')
    for rule in range(len(net.names)):
        is_empty = net.end[rule] in net.silently(net.start[rule])
        assert is_empty == (rule == 0)


def test_components_are_those_of_mutual_reach():
    edges = {0: {1}, 1: {2}, 2: {0, 3}, 3: {4}, 4: {3}, 5: {0, 5}}
    component = networks.components(edges)
    parts = {}
    for node, number in component.items():
        parts.setdefault(number, set()).add(node)
    assert sorted(map(sorted, parts.values())) == [[0, 1, 2], [3, 4], [5]]


def test_masks_hold_their_bytes():
    assert networks.mask_of([0, 3]) == 9
