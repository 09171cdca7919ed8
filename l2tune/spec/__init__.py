"""What is asked and answered: frozen types only, no I/O. All other parts of l2tune import these."""
