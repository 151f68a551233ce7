"""The method table of the README, and BibTeX: `python -m experiments.catalogue`."""

import argparse
import pathlib
import sys

from decoding import catalogue

BEGIN, END = "<!-- methods: begin -->", "<!-- methods: end -->"


def table() -> str:
    """One Markdown row per method file."""
    rows = ["| method | guarantee | source |", "|---|---|---|"]
    for name, card in catalogue.catalogue().items():
        rows.append(
            f"| [`{name}`](decoding/{name}.py) | {card.guarantee} | {card.paper} |"
        )
    return "\n".join(rows)


def fill(text: str) -> str:
    """`text` with the table between its markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--readme", type=pathlib.Path, help="rewrite its table in place"
    )
    arguments = parser.parse_args(argv)
    if arguments.readme:
        arguments.readme.write_text(fill(arguments.readme.read_text()))
    else:
        print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
