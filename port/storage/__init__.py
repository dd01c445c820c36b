"""Files that the commands keep: locked folders, atomic writes."""
