//! For tests: convolutions, with ReLU and average pooling, and what they are by definition, in f64.

use crate::descriptors::convolution::{Convolution, Geometry};

/// The sizes of one case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) batch: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) channels: usize,
    pub(crate) out_channels: usize,
    pub(crate) kernel_height: usize,
    pub(crate) kernel_width: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
    pub(crate) pool: usize,
    pub(crate) relu: bool,
    pub(crate) bias: bool,
}

pub(crate) struct Tensors {
    pub(crate) x: Vec<f32>,
    pub(crate) weight: Vec<f32>,
    pub(crate) bias: Vec<f32>,
    pub(crate) dy: Vec<f32>,
}

/// y, dx, dw and db; then dw and db of a backward pass that computes no dx.
pub(crate) type Results<T> = [Vec<T>; 6];

const NAMES: [&str; 6] = ["y", "dx", "dw", "db", "dw alone", "db alone"];

/// Multiples of 1/8 in [-1, 1).
fn random(seed: &mut u64, n: usize) -> Vec<f32> {
    let mut next = || {
        *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
        (*seed >> 60) as f32 / 8. - 1.
    };
    (0..n).map(|_| next()).collect()
}

/// Makes numbers odd multiples of 1/8 where `odd` says so, and even ones elsewhere.
fn make_odd(numbers: &mut [f32], odd: impl Fn(usize) -> bool) {
    for (i, v) in numbers.iter_mut().enumerate() {
        *v = (*v * 4.).floor() / 4. + if odd(i) { 0.125 } else { 0. };
    }
}

impl Case {
    /// This case, but for a change.
    pub(crate) fn but(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub(crate) fn geometry(&self) -> Geometry {
        let x = [self.batch, self.height, self.width, self.channels];
        let weight = [
            self.out_channels,
            self.channels,
            self.kernel_height,
            self.kernel_width,
        ];
        Geometry::new(&x, &weight, None, self.stride, self.padding).expect("the kernel fits")
    }

    pub(crate) fn op(&self) -> Convolution {
        Convolution {
            geometry: self.geometry(),
            relu: self.relu,
            pool: self.pool,
        }
    }

    /// Each z is an odd multiple of 1/64, never near 0, so that no rounding decides about ReLU: the
    /// product of the first channel and the first tap is odd, all others are even.
    pub(crate) fn tensors(&self) -> Tensors {
        let g = self.geometry();
        let y: usize = self.op().dims().iter().product();
        let mut seed = 7;
        let mut x = random(&mut seed, g.batch * g.sample());
        let mut weight = random(&mut seed, g.taps() * g.out_channels);
        make_odd(&mut x, |i| i % g.channels == 0);
        make_odd(&mut weight, |i| i % g.taps() == 0);
        Tensors {
            x,
            weight,
            bias: random(&mut seed, if self.bias { g.out_channels } else { 0 }),
            dy: random(&mut seed, y),
        }
    }

    /// Computes the results by definition.
    pub(crate) fn expected(&self, t: &Tensors) -> Results<f64> {
        let g = self.geometry();
        let [lines, columns] = self.op().pooled();
        let share = 1. / (self.pool * self.pool) as f64;
        let zeros = |of: &[f32]| vec![0.; of.len()];
        let mut y = zeros(&t.dy);
        let mut dx = zeros(&t.x);
        let mut dw = zeros(&t.weight);
        let mut db = zeros(&t.bias);
        let pixels = lines * self.pool * columns * self.pool;
        for i in 0..g.batch * pixels * g.out_channels {
            let of_batch = i / g.out_channels;
            let o = i % g.out_channels;
            let b = of_batch / pixels;
            let pixel = of_batch % pixels;
            let oy = pixel / (columns * self.pool);
            let ox = pixel % (columns * self.pool);
            let window = (b * lines + oy / self.pool) * columns + ox / self.pool;
            let out = window * g.out_channels + o;
            let mut z = t.bias.get(o).map_or(0., |b| f64::from(*b));
            // calls `f` with the indices in x and in the weight of each tap that is not padding
            let each_tap = |f: &mut dyn FnMut(usize, usize)| {
                for tap in 0..g.taps() {
                    let c = tap % g.channels;
                    let k = tap / g.channels;
                    let ky = k / g.kernel_width;
                    let kx = k % g.kernel_width;
                    // of a pixel in the padding above or to the left this is huge
                    let line = (oy * g.stride + ky).wrapping_sub(g.padding);
                    let column = (ox * g.stride + kx).wrapping_sub(g.padding);
                    if line < g.height && column < g.width {
                        let x = ((b * g.height + line) * g.width + column) * g.channels + c;
                        let w = ((o * g.channels + c) * g.kernel_height + ky) * g.kernel_width + kx;
                        f(x, w);
                    }
                }
            };
            each_tap(&mut |x, w| z += f64::from(t.x[x]) * f64::from(t.weight[w]));
            if !self.relu || z > 0. {
                let d = share * f64::from(t.dy[out]);
                y[out] += share * z;
                each_tap(&mut |x, w| {
                    dx[x] += d * f64::from(t.weight[w]);
                    dw[w] += d * f64::from(t.x[x]);
                });
                if self.bias {
                    db[o] += d;
                }
            }
        }
        [y, dx, dw.clone(), db.clone(), dw, db]
    }

    /// Checks each element to within 1e-5 of the largest one expected (or of 1).
    pub(crate) fn assert_close(&self, ours: &Results<f32>, expected: &Results<f64>) {
        for ((name, ours), expected) in NAMES.iter().zip(ours).zip(expected) {
            assert_eq!(ours.len(), expected.len(), "{self:?}: {name}");
            let largest = expected.iter().fold(1f64, |most, v| most.max(v.abs()));
            for (i, (a, b)) in ours.iter().zip(expected).enumerate() {
                let error = (f64::from(*a) - b).abs() / largest;
                // written so that NaN fails
                let near = error <= 1e-5;
                assert!(near, "{self:?}: {name}[{i}] {a} not {b}, {error:e}");
            }
        }
    }
}

/// The book's second layer.
pub(crate) const LENET: Case = Case {
    batch: 3,
    height: 13,
    width: 13,
    channels: 20,
    out_channels: 50,
    kernel_height: 5,
    kernel_width: 5,
    stride: 1,
    padding: 0,
    pool: 2,
    relu: true,
    bias: true,
};
