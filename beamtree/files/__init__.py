"""Files that are whole or not there, that one process writes, and that are known by their checksums."""
