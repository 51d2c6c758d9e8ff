//! A chain of values of any length fits into a small stack: where it is compiled, computed, differentiated and dropped.

use candle_core::{DType, Device, Result, Tensor, Var};
use functional::{Gradients, Value};

const LENGTH: usize = 10_000;

/// On a thread with a stack of 128 KiB.
fn on_a_small_stack(f: fn() -> Result<()>) {
    let thread = std::thread::Builder::new().stack_size(128 << 10);
    thread.spawn(f).unwrap().join().unwrap().unwrap();
}

/// x times `LENGTH` + 1, as so many sums.
fn sums(x: &Value) -> Result<Value> {
    let mut h = x.clone();
    for _ in 0..LENGTH {
        h = (&h + x)?;
    }
    Ok(h)
}

#[test]
fn of_sums() {
    on_a_small_stack(|| {
        let w = Var::new(&[1f32, -2.], &Device::Cpu)?;
        let y = sums(&Value::new(&w)?)?;
        assert_eq!(y.eval()?.to_vec1::<f32>()?, [10_001., -20_002.]);
        let mut gradients = Gradients::new([("w", &w)], usize::MAX)?;
        gradients.backward(&sums(&Value::new(&w)?)?.sum()?)?;
        assert_eq!(gradients.values()?[0].to_vec1::<f32>()?, [10_001.; 2]);
        Ok(())
    });
}

/// Of an image of one pixel: such a transposition is only another shape.
#[test]
fn of_shapes() {
    on_a_small_stack(|| {
        let w = Var::ones((1, 1, 1, 1), DType::F32, &Device::Cpu)?;
        let mut h = Value::new(&w)?;
        for _ in 0..LENGTH {
            h = h.nhwc()?;
        }
        let mut gradients = Gradients::new([("w", &w)], usize::MAX)?;
        assert_eq!(
            gradients.backward(&h)?.flatten_all()?.to_vec1::<f32>()?[0],
            1.
        );
        Ok(())
    });
}

/// Each batch norm with the convolution before it and a shortcut, as in a ResNet.
#[test]
fn of_residual_blocks() {
    on_a_small_stack(|| {
        let ones = Tensor::ones(2, DType::F32, &Device::Cpu)?;
        let running = [
            Var::zeros(2, DType::F32, &Device::Cpu)?,
            Var::ones(2, DType::F32, &Device::Cpu)?,
        ];
        let w = Var::zeros((2, 2, 1, 1), DType::F32, &Device::Cpu)?;
        let b = Var::zeros(2, DType::F32, &Device::Cpu)?;
        let mut h = Value::new(&Tensor::ones((2, 1, 1, 2), DType::F32, &Device::Cpu)?)?;
        for _ in 0..LENGTH / 10 {
            let block = h.conv2d(&w, Some(&b), 1, 0)?;
            let block =
                block.batch_norm2d([&ones, &ones], [&running[0], &running[1]], None, true)?;
            h = (&block + &h)?.relu()?;
        }
        let mut gradients = Gradients::new([("w", &w)], usize::MAX)?;
        gradients.backward(&h.mean()?)?;
        assert_eq!(h.eval()?.flatten_all()?.to_vec1::<f32>()?, [1001.; 4]);
        Ok(())
    });
}
