"""Where generated code runs: sandboxed interpreters, usable without Ray, torch or the other rooms."""
