//! From the same parameters on the same minibatches, the losses, outputs and updates are
//! PyTorch's. The numbers are PyTorch's in float64 (tests/pytorch/*.json); the tolerances are a few
//! times what float32 costs PyTorch itself, as noted beside the numbers.

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor};
use concise::{DataParallel, Initializer, Sgd, Trainer, resnet18};
use data_parallel::devices::{InstructionSet, instruction_set};
use functional::Network;
use run::BatchLoss;

use crate::k_replicas_are_one::params;
use crate::kit::{
    close, copies, cpus, formula_batch, formula_tensor, largest, steps, tensor_is_close, theirs,
};

trials![
    lenet_takes_pytorchs_ten_steps,
    lenet_on_k_devices_has_pytorchs_losses,
    resnet18_has_pytorchs_logits,
    resnet18_takes_pytorchs_three_steps,
    resnet18_has_pytorchs_state_dict,
    every_weight_of_resnet18_is_drawn,
];

const LENET: &str = include_str!("../pytorch/lenet.json");
const RESNET: &str = include_str!("../pytorch/resnet.json");

/// The batch of `lenet_steps.py`.
fn lenet_batch() -> Result<(Tensor, Tensor)> {
    let theirs = theirs(LENET);
    let number = |what: &str| theirs[what].as_u64().context("no number");
    let batch = formula_batch(number("batch")? as u32, number("examples")? as usize);
    Ok(batch?)
}

fn ten_losses(k: usize) -> Result<(Vec<f32>, Vec<Tensor>)> {
    let (devices, device_params) = (cpus(k), copies(&params()?, k)?);
    let (x, y) = lenet_batch()?;
    let step = |_| {
        let ls = scratch::train_batch(&x, &y, &device_params, &devices, 0.05)?;
        BatchLoss::new(ls, x.dim(0)?).mean()
    };
    let losses = (0..10).map(step).collect::<candle_core::Result<_>>()?;
    let params = device_params[k - 1].iter().map(|p| p.detach());
    Ok((losses, params.collect()))
}

fn lenet_takes_pytorchs_ten_steps() -> Result<()> {
    let (theirs, (x, _)) = (theirs(LENET), lenet_batch()?);
    let before = scratch::get_params(&params()?, &Device::Cpu)?;
    let logits = scratch::lenet(&x, &before)?.eval()?.get(0)?.to_vec1()?;
    close("logits", &logits, &theirs["logits"]["float64"], 2e-6)?;
    let (losses, after) = ten_losses(1)?;
    close("losses", &losses, &theirs["losses"]["float64"], 1e-5)?;
    let names = ["W1", "b1", "W2", "b2", "W3", "b3", "W4", "b4"];
    for (name, param) in names.into_iter().zip(&after) {
        tensor_is_close(name, param, &theirs["tensors"][name], [5e-5, 2e-6])?;
    }
    Ok(())
}

fn lenet_on_k_devices_has_pytorchs_losses() -> Result<()> {
    let losses = &theirs(LENET)["losses"]["float64"];
    for k in [2, 3, 4] {
        let what = format!("losses on {k} devices");
        close(&what, &ten_losses(k)?.0, losses, 1e-5)?;
    }
    Ok(())
}

/// The state of `resnet_steps.py`: each entry of the state dict by its number, name and shape.
fn formula_entry(s: u32, name: &str, like: &Tensor) -> candle_core::Result<Tensor> {
    let dims = like.dims();
    let drawn = |std: f64| formula_tensor(s, std, dims);
    let norm = name.starts_with("1.") || name.contains(".bn");
    match dims.len() {
        0 => like.zeros_like(),
        4 => drawn((2.0 / (dims[1] * dims[2] * dims[3]) as f64).sqrt()),
        _ if name.ends_with("running_var") => drawn(0.2)?.abs()? + 1.0,
        _ if norm && name.ends_with("weight") => drawn(0.1)? + 1.0,
        _ => drawn(if norm { 0.1 } else { 0.05 }),
    }
}

fn resnet() -> Result<DataParallel> {
    let net = DataParallel::new(&cpus(1), Initializer::Layers, 0, |vb| resnet18(10, vb))?;
    let state = net.state_dict()?.into_iter().enumerate();
    let entry = |(s, (name, like)): (usize, (String, Tensor))| {
        let tensor = formula_entry(s as u32, &name, &like)?;
        Ok((name, tensor))
    };
    net.load_state_dict(&state.map(entry).collect::<Result<Vec<_>>>()?)?;
    Ok(net)
}

fn resnet18_has_pytorchs_logits() -> Result<()> {
    use candle_nn::{VarBuilder, VarMap};
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let net = resnet18(10, vb)?;
    for (s, (name, like)) in resnet()?.state_dict()?.iter().enumerate() {
        let data = varmap.data().lock().expect("no panic before");
        let var = data.get(name).with_context(|| name.clone())?;
        var.set(&formula_entry(s as u32, name, like)?)?;
    }
    let (x, _) = formula_batch(0, 4)?;
    let logits = net.forward(&functional::Value::new(&x)?, false)?.eval()?;
    for (i, logits) in logits.to_vec2()?.iter().enumerate() {
        let theirs = &theirs(RESNET)["logits"]["float64"][i];
        // without a fused multiply-add each product is rounded as well
        let is_fused = instruction_set() != InstructionSet::Scalar;
        close("logits", logits, theirs, if is_fused { 1e-5 } else { 2e-5 })?;
    }
    Ok(())
}

fn resnet18_takes_pytorchs_three_steps() -> Result<()> {
    let (net, theirs) = (resnet()?, theirs(RESNET));
    let mut trainer = Trainer::new(&net, functional::cross_entropy, Sgd::new(0.001));
    let losses = steps(&mut trainer, 0..3, 4)?;
    // Among a million inputs of ReLUs some are within rounding of zero and fall on the other side
    // here than there; seen: one in resnet_block1.0, which moves the third loss by 2e-5. A step
    // moves the weights by up to 5e-4.
    close("losses", &losses, &theirs["losses"]["float64"], 2e-4)?;
    for (name, theirs) in theirs["tensors"].as_object().context("no tensors")? {
        let ours = net.parameter(name, 0)?;
        let of_sum = 2e-4_f64.max(1e-7 * ours.elem_count() as f64);
        // the scale of batch norm moves by no more than 6e-5
        let scale = name.ends_with("bn1.weight");
        let tolerance = [of_sum, if scale { 2e-6 } else { 1e-5 }];
        tensor_is_close(name, &ours, theirs, tolerance)?;
    }
    let counter = net.parameter("1.num_batches_tracked", 0)?;
    ensure!(counter.to_scalar::<i64>()? == 3, "{counter}");
    Ok(())
}

fn resnet18_has_pytorchs_state_dict() -> Result<()> {
    let net = resnet()?;
    let state = net.state_dict()?;
    let names: Vec<&str> = state.iter().map(|(name, _)| name.as_str()).collect();
    let n = net.num_parameters();
    ensure!(n == 11_175_818, "{n}");
    ensure!(names.len() == 127, "{} entries", names.len());
    let first = [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
        "resnet_block1.0.conv1.weight",
    ];
    ensure!(names[..8] == first, "{:?}", &names[..8]);
    ensure!(names[39] == "resnet_block2.0.conv3.weight", "{}", names[39]);
    ensure!(names[126] == "fc.1.bias", "{}", names[126]);
    Ok(())
}

/// The book's own code leaves some weights as PyTorch draws them; here none is missed.
fn every_weight_of_resnet18_is_drawn() -> Result<()> {
    let net = DataParallel::new(&cpus(1), Initializer::Normal(0.01), 3, |vb| {
        resnet18(10, vb)
    })?;
    for (name, tensor) in net.state_dict()? {
        if tensor.rank() >= 2 {
            let std = tensor.sqr()?.mean_all()?.to_scalar::<f32>()?.sqrt();
            let room = 0.01 * 4.0 / (tensor.elem_count() as f32).sqrt();
            ensure!((std - 0.01).abs() < room, "{name}: {std}");
        } else if name.ends_with("bias") {
            ensure!(largest(&tensor)? == 0.0, "{name} does not start at zero");
        }
    }
    Ok(())
}
