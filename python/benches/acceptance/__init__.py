"""The parts of `accept.py`: its sections, their networks and rivals, and the table of measurements."""
