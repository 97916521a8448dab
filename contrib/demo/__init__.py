"""``make demo``: swap a real model's weights under load, live, and prove the result."""
