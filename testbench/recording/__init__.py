"""What testbench/record.py runs: the commands behind each record, how long they take, and what their records say."""
