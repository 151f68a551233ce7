"""Decode a text in the terminal, round by round, and print its statistics.

python -m experiments.generate --model=tiny --method=token_recycling \\
    --prompt="def body(arguments: list[str]) -> int:
    """Stream the text of a command line, and print its statistics."""
    values, out = read(arguments), console.terminal()
    output = generate(values, out)
    out.print("\n")
    for line in figures(output):
        out.print(line, style="dim", highlight=False)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    return command_line.call(MODULE, body, arguments)


if __name__ == "__main__":
    sys.exit(main())
