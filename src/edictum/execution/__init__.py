"""Private: where and how tool bodies run, and how anything is waited for."""
