"""References that users compare with, and what only this project measures: programs, and the records they made."""
