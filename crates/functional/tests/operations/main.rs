//! What this crate claims of its operations, a module a claim.

mod against_candle;
mod bits;
mod by_hand;
mod empty;
mod errors;
mod finite_differences;
mod recording;
mod support;
mod twins;
mod views;
