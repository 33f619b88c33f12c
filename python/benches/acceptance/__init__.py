"""What `accept.py` asks of a GPU: its sections, the networks and rivals that they use, and the table of what was measured."""
