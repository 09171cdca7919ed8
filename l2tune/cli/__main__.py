"""`python -m l2tune.cli`, for where the `l2tune` script is not installed."""

from l2tune.cli import app

app()
