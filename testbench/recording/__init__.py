"""Run the commands behind each record for testbench/record.py, and say how long they take and what they found."""
