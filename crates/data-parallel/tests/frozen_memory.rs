//! What a trainer does not train has no gradient and no optimizer state, so it takes no memory for them. A test binary of
//! its own, because it counts the memory of the whole process.

use cap::Cap;
use data_parallel::prelude::*;
use std::alloc::System;

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// The memory that the first steps of a trainer add, in bytes.
fn added_by(net: &DataParallel, frozen: Option<&str>) -> Result<isize> {
    let before = MEMORY.allocated() as isize;
    let mut trainer = Trainer::new(net, cross_entropy, AdamW::default());
    if let Some(frozen) = frozen {
        trainer = trainer.rate(frozen, 0.0)?;
    }
    let x = Tensor::ones((4, 500), DType::F32, &Device::Cpu)?;
    let y = Tensor::zeros(4, DType::U32, &Device::Cpu)?;
    for _ in 0..3 {
        trainer.step(&x, &y)?;
    }
    let added = MEMORY.allocated() as isize - before;
    drop(trainer); // only now
    Ok(added)
}

#[test]
fn what_is_frozen_takes_no_memory_for_gradients() -> Result<()> {
    let net = DataParallel::new(&devices(2)?, Initializer::Layers, 0, |vb| {
        let stem = Linear::new(500, 2000, vb.pp("stem"))?;
        Ok(Sequential::new()
            .add(stem)
            .add(Linear::new(2000, 3, vb.pp("head"))?))
    })?;
    added_by(&net, None)?; // what is kept from step to step
    let (all, head) = (added_by(&net, None)?, added_by(&net, Some("stem"))?);
    // the gradient and the two moments of AdamW, on two replicas
    let of_stem = (501 * 2000 * size_of::<f32>() * 3 * 2) as isize;
    let saved = all - head;
    let rest = (saved - of_stem).abs();
    assert!(
        rest < of_stem / 10,
        "all {all}, the head {head}: {saved} less, expected {of_stem}"
    );
    Ok(())
}
