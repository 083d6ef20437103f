"""Features that one optimizer takes from the library it is ported from."""
