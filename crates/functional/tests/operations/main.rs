//! What this crate claims of its operations, a module a claim.

mod against_candle;
mod bits;
mod buckets;
mod by_hand;
mod empty;
mod errors;
mod expressions;
mod finite_differences;
#[cfg(feature = "cuda")]
mod on_a_gpu;
mod recording;
mod short_way;
mod support;
mod synchronized;
mod training;
mod twins;
mod views;
