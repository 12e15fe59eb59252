"""How good and how safe a saved policy is: episodes, verdicts, exact values."""
