"""`pellucid runs`, `show`, `diff` and `top`: a local store in the terminal."""
