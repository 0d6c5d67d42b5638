"""`python -m actum` is the command line."""

from actum.cli import main

main()
