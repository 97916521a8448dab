"""Fakes, checkpoints and checks for the tests of hotswap and of its plug-ins."""
