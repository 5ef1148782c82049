"""Fork server: start a command's Pythons from a process that has imported torch already."""
