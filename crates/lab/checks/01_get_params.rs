// Two copies on one device: their values, their gradients, and that they share no memory.

use anyhow::{Result, ensure};
use candle_core::{DType, Device, Tensor};
use lab::same;

use super::exercise::get_params;

pub fn check() -> Result<()> {
    let params = scratch::init_params(0)?;
    let [one, two] = [0, 1].map(|_| get_params(&params, &Device::Cpu));
    let (one, two) = (one?, two?);
    let (n, right) = (one.len(), params.len());
    ensure!(n == right, "You return {n} parameters. LeNet has {right}.");
    for (i, param) in params.iter().enumerate() {
        same(&format!("Parameter {i}"), &one[i], param)?;
        same(&format!("The gradient of parameter {i}"), one[i].grad(), &param.zeros_like()?)?;
    }
    // an update of one replica must change no other replica, and not the initial parameters
    let before = params[0].copy()?;
    one[0].grad().set(&Tensor::ones(params[0].shape(), DType::F32, &Device::Cpu)?)?;
    d2l::sgd(&one, 1.0, 1)?;
    let sentence = "After a step of one replica, {} changed too. Both share their memory, so copy it.";
    for (what, tensor) in [("the other replica", &*two[0]), ("the initial parameters", &params[0])] {
        ensure!(same("", tensor, &before).is_ok(), "{}", sentence.replace("{}", what));
    }
    Ok(())
}
