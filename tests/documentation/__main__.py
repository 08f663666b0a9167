"""`python -m tests.documentation` writes every generated block of the README and of docs/ anew."""

from tests.documentation.pages import write_all

write_all()
