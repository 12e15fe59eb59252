"""The paper's comparisons as programs: many runs from one command, that can be stopped and resumed."""
