//! Ten steps of LeNet on one batch, as PyTorch takes them.
//!
//! Printed by `tests/pytorch/lenet_steps.py` with torch 2.15.0+cu132: run it again
//! instead of editing. The numbers are PyTorch's in float64; the comments say how far
//! PyTorch's own float32, on one thread, is from them (largest absolute difference).
//!
//! No input of a ReLU came nearer to 0 than 2.9 times float32's error.

/// Examples in the batch.
pub const EXAMPLES: usize = 8;

/// The batch's number in the formula.
pub const BATCH: u32 = 288;

/// Logits of the first example before training.
///
/// float32 is at most 1.3e-07 away.
pub const LOGITS: [f64; 10] = [
    0.507627260749,
    -0.537205155862,
    0.0230697427078,
    0.316924477941,
    0.0538278952376,
    0.35356536143,
    -0.17272558446,
    0.501473858571,
    0.134562109802,
    -0.744826899262,
];

/// Mean loss of the batch before each update.
///
/// float32 is at most 4.1e-07 away.
pub const LOSSES: [f64; 10] = [
    2.44341485753,
    1.90764384159,
    1.569464796,
    1.43042790143,
    1.3598278667,
    1.32831322349,
    1.34018699057,
    1.48859090138,
    1.62004690181,
    1.4543494317,
];

/// Parameters after the ten updates: name, sum, first and last three elements.
pub const PARAMS: [(&str, f64, [f64; 3], [f64; 3]); 8] = [
    // moved by at most 2.8e-02; float32: the sum 3.5e-07, an element at most 1.2e-07 away
    (
        "W1",
        -0.594545968605,
        [0.0824854001403, -0.0930008366704, -0.055964846164],
        [-0.0199039321017, -0.115139371414, -0.0134406393151],
    ),
    // moved by at most 4.2e-02; float32: the sum 1.6e-07, an element at most 1.2e-07 away
    (
        "b1",
        -0.0140057632146,
        [-0.0485025681555, 0.0939738658623, 0.0363014937418],
        [-0.0401492140117, -0.154454662607, 0.0619671231507],
    ),
    // moved by at most 1.7e-02; float32: the sum 1.1e-06, an element at most 4.7e-08 away
    (
        "W2",
        0.486885512512,
        [-0.00702708680183, -0.0619259290397, -0.0297004804015],
        [-0.101520823723, -0.0591078916973, 0.129847811742],
    ),
    // moved by at most 4.6e-02; float32: the sum 5.7e-08, an element at most 2.6e-08 away
    (
        "b2",
        -0.669300410348,
        [-0.0590436088351, 0.088569605736, -0.148135979288],
        [-0.0206086356193, -0.0838318140212, -0.152659716246],
    ),
    // moved by at most 9.7e-03; float32: the sum 1.7e-06, an element at most 4.7e-08 away
    (
        "W3",
        61.2396427159,
        [0.0732492922871, -0.104604236782, 0.15607346658],
        [0.157374650391, 0.0654049793997, 0.0795158818364],
    ),
    // moved by at most 1.5e-02; float32: the sum 4.0e-08, an element at most 2.3e-08 away
    (
        "b3",
        0.801482913955,
        [-0.104933476915, -0.144816845655, -0.00560554343664],
        [-0.0524880433368, 0.0553567190982, -0.124945282936],
    ),
    // moved by at most 7.5e-02; float32: the sum 2.9e-07, an element at most 4.4e-08 away
    (
        "W4",
        -2.18432097964,
        [0.0442316215021, -0.153945946109, 0.0760556761378],
        [0.137100353837, 0.00914237182587, -0.169994056225],
    ),
    // moved by at most 3.5e-02; float32: the sum 2.4e-08, an element at most 2.2e-08 away
    (
        "b4",
        0.141585005447,
        [-0.0890457038564, 0.129726702601, 0.124708692575],
        [-0.169065161519, 0.148422620468, -0.08731484568],
    ),
];
