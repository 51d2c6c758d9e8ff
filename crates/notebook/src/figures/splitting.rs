//! The three ways to split the training of a network over two devices.

use super::card::{Card, EMPTY, MARK, Pair, SOFT};

const PANEL: f64 = 132.0;
/// Between the two devices of a panel, where they are apart.
const GAP: f64 = 8.0;
const LAYER: Pair = (PANEL, 30.0);
/// From a layer to the next.
const PITCH: f64 = 58.0;
const TOP: f64 = 158.0;
const LAYERS: usize = 4;

/// One of the ways.
struct Way {
    name: [&'static str; 2],
    draw: fn(&mut Card, f64),
    /// The share of each device.
    has: [&'static str; 2],
    /// The exchange between the devices.
    crosses: [&'static str; 2],
}

const WAYS: [Way; 3] = [
    Way {
        name: ["network", "partitioning"],
        draw: network,
        has: ["each has a few", "of the layers;"],
        crosses: ["activations cross", "once"],
    },
    Way {
        name: ["layer-wise", "partitioning"],
        draw: layer_wise,
        has: ["each has a part", "of every layer;"],
        crosses: ["activations cross", "at every layer"],
    },
    Way {
        name: ["data", "parallelism"],
        draw: data,
        has: ["each has all layers,", "half the examples;"],
        crosses: ["gradients cross", "once a step"],
    },
];

pub fn svg() -> String {
    let mut card = Card::new();
    card.text((16.0, 30.0), "title", "Splitting the training");
    card.legend((296.0, 30.0), 2);
    for (i, way) in WAYS.iter().enumerate() {
        let x = 16.0 + (PANEL + 26.0) * i as f64;
        let middle = x + PANEL / 2.0;
        card.lines((middle, 64.0), "bold", &way.name);
        (way.draw)(&mut card, x);
        card.lines((middle, bottom() + 56.0), "soft", &way.has);
        card.lines((middle, bottom() + 92.0), "mark", &way.crosses);
    }
    let label = "Three ways to split the training over two devices: network partitioning between the layers, \
                 layer-wise partitioning within each layer, data parallelism by examples";
    card.finish(bottom() + 126.0, label)
}

/// The foot of the last layer.
fn bottom() -> f64 {
    TOP + PITCH * (LAYERS - 1) as f64 + LAYER.1
}

/// The top of each layer, and its name.
fn layers() -> impl Iterator<Item = (f64, String)> {
    (0..LAYERS).map(|i| (TOP + PITCH * i as f64, format!("layer {}", i + 1)))
}

fn network(card: &mut Card, x: f64) {
    examples(card, (x, PANEL));
    for (i, (y, name)) in layers().enumerate() {
        card.device((x, y), LAYER, 2 * i / LAYERS, &name);
        let color = if i + 1 == LAYERS / 2 { MARK } else { SOFT };
        down(card, y, [x + PANEL / 2.0; 2], color);
    }
}

fn layer_wise(card: &mut Card, x: f64) {
    examples(card, (x, PANEL));
    for (y, name) in layers() {
        card.halves((x, y), LAYER, &name);
        exchange(card, y, [x + PANEL / 4.0, x + PANEL * 3.0 / 4.0]);
    }
}

fn data(card: &mut Card, x: f64) {
    let width = (PANEL - GAP) / 2.0;
    let middles = [x + width / 2.0, x + width * 1.5 + GAP];
    for (device, middle) in middles.into_iter().enumerate() {
        let x = middle - width / 2.0;
        examples(card, (x, width));
        for (i, (y, name)) in layers().enumerate() {
            card.device((x, y), (width, LAYER.1), device, &name);
            if i + 1 < LAYERS {
                down(card, y, [middle; 2], SOFT);
            }
        }
    }
    exchange(card, bottom() - LAYER.1, middles);
}

/// The input of the first layer.
fn examples(card: &mut Card, (x, width): Pair) {
    let (y, height) = (TOP - PITCH, LAYER.1);
    let words = if width == PANEL {
        "all examples"
    } else {
        "half"
    };
    card.tile((x, y), (width, height), EMPTY);
    let middle = x + width / 2.0;
    card.text((middle, y + height / 2.0 + 5.0), "middle", words);
    down(card, y, [middle; 2], SOFT);
}

/// From a layer to the next.
fn down(card: &mut Card, layer: f64, [from, to]: [f64; 2], color: &str) {
    let (top, foot) = (layer + LAYER.1 + 2.0, layer + PITCH - 2.0);
    card.arrow(&[(from, top), (to, foot)], color);
}

/// From both devices to both.
fn exchange(card: &mut Card, layer: f64, [a, b]: [f64; 2]) {
    let aside = 6.0;
    down(card, layer, [a - aside; 2], SOFT);
    down(card, layer, [b + aside; 2], SOFT);
    down(card, layer, [a, b - aside], MARK);
    down(card, layer, [b, a + aside], MARK);
}
