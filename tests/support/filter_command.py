"""Runs ``snailps filter`` in this process."""

from snailps.cli.main import app_for


def command(inputs, models, keep, output, **options):
    """Filter by options of the command line; a list is an option that is given several times."""
    options = {"input": inputs, "model": models, "keep": keep, "output": output, **options}
    words = ["filter"]
    for name, value in options.items():
        flag = "--json" if name == "as_json" else f"--{name.replace('_', '-')}"
        for text in value if isinstance(value, list) else [value]:
            words += [flag] if text is True else [flag, str(text)]
    app_for(words)(words, standalone_mode=False)
