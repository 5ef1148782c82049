"""What Python programs use, with the commands' own names and results; `import oomdoctor` offers it."""
