"""The command ``snailps``: one file a command; parses and prints, the work is done elsewhere."""
