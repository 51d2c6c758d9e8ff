//! Programs of one's own on `concise`: see tests.
