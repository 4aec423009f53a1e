"""What tests of several folders share: no test of its own, and nothing that only one file needs."""
