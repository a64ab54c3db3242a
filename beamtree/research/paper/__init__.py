"""The paper's tables, each a file and a command."""
