//! The readers of datasets.
#![no_main]

#[allow(dead_code)] // each target calls one of them
#[path = "../../tests/claims/fuzzed.rs"]
mod fuzzed;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzzed::idx(bytes));
