//! "Data Synchronization", first cell: copies the parameters to one device and attaches gradients. No
//! backward pass has run yet, so the gradient of the bias is zero.
//!
//! `cargo run --example 01_get_params`

use scratch::{get_params, init_params};

fn main() -> anyhow::Result<()> {
    let params = init_params(0)?;
    let new_params = get_params(&params, &d2l::try_gpu(0))?;
    println!("b1 weight: {}", *new_params[1]);
    println!("b1 grad: {}", new_params[1].grad());
    Ok(())
}
