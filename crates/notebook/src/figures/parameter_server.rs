//! The book's four GPUs on one PCIe switch, which sum their gradients at one of three places.

use super::card::{Card, EMPTY, FAINT, INK, MARK, Pair, SOFT, WIDTH};
use collective::Algorithm;
use collective::cost::Link;

/// The book's: 160 MB of gradients, 16 GB/s.
const MEGABYTES: usize = 160;
const LINK: Link = Link {
    latency: std::time::Duration::ZERO,
    bytes_per_second: 16e9,
};
const GPUS: usize = 4;
const TILE: Pair = (74.0, 28.0);
const PANEL: f64 = 214.0;

/// A place to sum at: the MB through each link there, and as many back.
struct Place {
    name: &'static str,
    algorithm: Algorithm,
    /// The number of GPUs, and one more where the CPU sums.
    members: usize,
    /// MB into a GPU or out of it.
    gpus: [usize; GPUS],
    cpu: usize,
}

pub fn svg() -> String {
    let mut card = Card::new();
    card.text(
        (16.0, 30.0),
        "title",
        "160 MB of gradients on each of four GPUs",
    );
    card.text(
        (16.0, 52.0),
        "soft",
        "MB through each link for the sum, and as many back;",
    );
    card.text(
        (16.0, 70.0),
        "soft",
        "the time is that of the busiest link, at 16 GB/s",
    );
    let one = MEGABYTES;
    let places = [
        Place {
            name: "all on one GPU",
            algorithm: Algorithm::Star,
            members: GPUS,
            gpus: [3 * one, one, one, one],
            cpu: 0,
        },
        Place {
            name: "all on the CPU",
            algorithm: Algorithm::Star,
            members: GPUS + 1,
            gpus: [one; GPUS],
            cpu: GPUS * one,
        },
        Place {
            name: "a quarter on each",
            algorithm: Algorithm::Owner,
            members: GPUS,
            gpus: [3 * one / 4; GPUS],
            cpu: 0,
        },
    ];
    for (i, place) in places.iter().enumerate() {
        panel(&mut card, 84.0 + PANEL * i as f64, place);
    }
    let ms: Vec<String> = places.iter().map(|place| place.ms().to_string()).collect();
    let label = format!(
        "Four GPUs on a PCIe switch sum 160 MB at 16 GB/s: on one GPU in {}, on the CPU in {}, \
         a quarter on each in {} ms",
        ms[0], ms[1], ms[2]
    );
    card.finish(84.0 + PANEL * 3.0 + 4.0, &label)
}

impl Place {
    fn ms(&self) -> f64 {
        let bytes = MEGABYTES * 1_000_000;
        LINK.time(self.algorithm, self.members, bytes).as_secs_f64() * 1e3
    }

    fn busiest(&self) -> usize {
        self.gpus.into_iter().fold(self.cpu, usize::max)
    }
}

fn panel(card: &mut Card, y: f64, place: &Place) {
    card.line((16.0, y), (WIDTH - 16.0, y), EMPTY);
    let ms = place.ms();
    card.text((16.0, y + 26.0), "bold", place.name);
    let time = format!("{} + {} = {ms} ms", ms / 2.0, ms / 2.0);
    card.text((WIDTH - 16.0, y + 26.0), "bold end", &time);
    let middle = WIDTH / 2.0;
    tile(card, (middle - TILE.0 / 2.0, y + 38.0), TILE, "CPU");
    link(
        card,
        middle,
        (y + 66.0, y + 102.0),
        place.cpu,
        place.busiest(),
    );
    let switch = (16.0, y + 102.0);
    tile(card, switch, (WIDTH - 32.0, 24.0), "PCIe switch");
    for (gpu, megabytes) in place.gpus.into_iter().enumerate() {
        let x = 74.0 + 110.7 * gpu as f64;
        link(card, x, (y + 126.0, y + 170.0), megabytes, place.busiest());
        let at = (x - TILE.0 / 2.0, y + 170.0);
        tile(card, at, TILE, &format!("GPU {gpu}"));
    }
}

fn tile(card: &mut Card, at: Pair, size: Pair, words: &str) {
    card.tile(at, size, EMPTY);
    card.frame(at, size, SOFT);
    let middle = (at.0 + size.0 / 2.0, at.1 + size.1 / 2.0 + 5.0);
    card.text(middle, "middle", words);
}

/// A link, as wide as the MB through it are many.
fn link(card: &mut Card, x: f64, (top, foot): Pair, megabytes: usize, busiest: usize) {
    let width = (megabytes as f64 / 60.0).max(1.0);
    let color = if megabytes == busiest { MARK } else { INK };
    let color = if megabytes == 0 { FAINT } else { color };
    card.tile(
        (x - width / 2.0, top + 2.0),
        (width, foot - top - 4.0),
        color,
    );
    if megabytes > 0 {
        card.text(
            (x + 10.0, (top + foot) / 2.0 + 5.0),
            "",
            &megabytes.to_string(),
        );
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_times_are_the_books() {
        let svg = super::svg();
        for ms in ["30 + 30 = 60 ms", "40 + 40 = 80 ms", "7.5 + 7.5 = 15 ms"] {
            assert!(svg.contains(ms), "{ms}");
        }
    }
}
