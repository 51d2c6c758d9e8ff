//! Three steps of ResNet-18, as PyTorch takes them.
//!
//! Printed by `tests/pytorch/resnet_steps.py` with torch 2.15.0+cu132: run it again
//! instead of editing. The numbers are PyTorch's in float64; the comments say how far
//! PyTorch's own float32, on one thread, is from them (largest absolute difference).

/// Logits of the examples of batch 0 in evaluation mode, before training.
///
/// float32 is at most 1.6e-06 away.
pub const EVAL_LOGITS: [[f64; 10]; 4] = [
    [
        0.356597037649,
        -5.87118708781,
        -2.7052647134,
        -1.96540379255,
        -0.500355476015,
        -3.92111968303,
        -4.95928906059,
        -0.150968465634,
        0.36073382615,
        2.95119674927,
    ],
    [
        0.621441923884,
        -6.14502784151,
        -2.73204066588,
        -2.33580645105,
        -0.471545918851,
        -3.9446762584,
        -4.92968658019,
        -0.107073406499,
        -0.201347686488,
        3.52330718517,
    ],
    [
        0.991400618143,
        -6.31875770711,
        -3.39821641505,
        -2.58073329732,
        0.160784565123,
        -3.78951374295,
        -4.92130270748,
        -0.165461437204,
        -0.170514590091,
        3.5821244978,
    ],
    [
        0.645844992114,
        -6.03770413057,
        -2.84401745721,
        -2.22972933083,
        0.239489038023,
        -3.75973834494,
        -4.88800047693,
        -0.169081104017,
        -0.220402098403,
        3.95406083495,
    ],
];

/// Mean loss of batches 0, 1 and 2 before their update.
///
/// float32 is at most 3.0e-07 away.
pub const LOSSES: [f64; 3] = [3.72906136325, 2.14591754453, 3.57123262152];

/// Some of the state after the three updates: name, sum, first three elements.
pub const STATE: [(&str, f64, [f64; 3]); 10] = [
    // moved by at most 4.7e-04; float32: the sum 1.2e-06, an element at most 1.0e-06 away
    (
        "0.weight",
        -18.5167008203,
        [0.388978626068, -0.438463714032, -0.263563273127],
    ),
    // moved by at most 4.5e-04; float32: the sum 1.4e-07, an element at most 1.0e-06 away
    (
        "1.weight",
        63.8648416177,
        [0.993023675974, 0.937821204356, 0.970183573227],
    ),
    // moved by at most 6.1e-01; float32: the sum 5.6e-08, an element at most 3.5e-08 away
    (
        "1.running_mean",
        -1.6400028878,
        [-0.180105329108, -0.208225280777, -0.00682191891823],
    ),
    // moved by at most 3.3e-01; float32: the sum 4.8e-06, an element at most 2.2e-07 away
    (
        "1.running_var",
        58.6234536533,
        [0.917882095307, 0.983949535868, 0.794692323054],
    ),
    // moved by at most 3.8e-04; float32: the sum 6.2e-07, an element at most 2.4e-07 away
    (
        "resnet_block2.0.conv3.weight",
        17.6688478705,
        [-0.0759542887409, -0.0992800590704, -0.0762079573148],
    ),
    // moved by at most 5.7e-05; float32: the sum 3.1e-07, an element at most 1.4e-07 away
    (
        "resnet_block3.1.bn1.weight",
        255.98597641,
        [0.907040722927, 1.16041949841, 0.831898950846],
    ),
    // moved by at most 5.1e-01; float32: the sum 4.2e-07, an element at most 1.2e-07 away
    (
        "resnet_block4.1.bn2.running_mean",
        -1.12310046476,
        [0.18303567136, -0.0438331741493, 0.143209915086],
    ),
    // moved by at most 2.5e-01; float32: the sum 3.4e-05, an element at most 5.2e-07 away
    (
        "resnet_block4.1.bn2.running_var",
        518.130037993,
        [1.07035404887, 1.04836474134, 1.0833577511],
    ),
    // moved by at most 5.9e-03; float32: the sum 4.3e-08, an element at most 1.1e-08 away
    (
        "fc.1.weight",
        -2.90676915778,
        [0.08382312317, -0.0522488016447, -0.0794864466275],
    ),
    // moved by at most 7.3e-04; float32: the sum 8.8e-09, an element at most 4.5e-09 away
    (
        "fc.1.bias",
        -0.229569507923,
        [-0.0863694801736, -0.018780720393, -0.00251159140371],
    ),
];
