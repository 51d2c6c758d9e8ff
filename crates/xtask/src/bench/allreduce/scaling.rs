//! What the cost model says of up to 1024 replicas, with the steps of this machine on it.

use collective::Algorithm;
use collective::cost::Link;

use super::chart::color;
use super::model::{Compute, LINKS, OVER_A_LINK, Scaling};
use super::{Results, steps};
use crate::bench::svg::{self, LogLog, apart, text};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 560.0;
const HEIGHT: f64 = 260.0;
const MEASURED: &str = "#24292f";

/// The picture.
pub fn svg(results: &Results) -> String {
    let mut body = String::new();
    let title = "A training step of ResNet-18 by the cost model, from the steps of one core";
    text(&mut body, (16.0, 24.0), "soft", title);
    svg::dot(&mut body, (21.0, 40.0), MEASURED);
    let title = "Measured here, one core for each replica";
    text(&mut body, (31.0, 44.0), "soft", title);
    let compute = steps::compute(&results.points);
    let mut y = 50.0;
    for scaling in results.scalings() {
        y += 26.0;
        let title = match scaling {
            Scaling::Strong(batch) => format!("Strong scaling: {batch} examples in all"),
            Scaling::Weak(batch) => format!("Weak scaling: {batch} examples for each replica"),
        };
        text(&mut body, (16.0, y), "title", &title);
        let panel = Panel::new(scaling, compute, results, y + 16.0);
        panel.draw(&mut body, results);
        y += 16.0 + HEIGHT + 44.0;
    }
    let label = "The time of a training step with more and more replicas";
    svg::document((WIDTH, y), label, &body)
}

/// Lines over the number of replicas.
struct Panel {
    scaling: Scaling,
    compute: Compute,
    axes: LogLog,
}

impl Panel {
    fn new(scaling: Scaling, compute: Compute, results: &Results, top: f64) -> Self {
        let most = scaling.replicas().into_iter().max().unwrap_or(1);
        let axes = LogLog {
            sides: (LEFT, RIGHT),
            x: (1.0, most as f64),
            heights: (top, top + HEIGHT),
            decades: (0, 0),
        };
        let mut panel = Self {
            scaling,
            compute,
            axes,
        };
        let measured = results.points.iter().filter(|p| p.scaling == scaling);
        let measured = measured.map(|point| point.ms().median);
        let lines = LINKS.iter().flat_map(|(_, link)| {
            let ends = |(algorithm, _)| panel.ms(link, algorithm).into_iter().map(|(_, ms)| ms);
            OVER_A_LINK.into_iter().flat_map(ends)
        });
        let alone = panel.alone().into_iter().map(|(_, ms)| ms);
        panel.axes.decades = LogLog::decades(measured.chain(lines).chain(alone));
        panel
    }

    /// The ms over a link.
    fn ms(&self, link: &Link, algorithm: Algorithm) -> Vec<(usize, f64)> {
        let ms = |k| (k, self.scaling.over(link, &self.compute, algorithm, k));
        self.scaling.replicas().into_iter().map(ms).collect()
    }

    /// The ms of computing alone.
    fn alone(&self) -> Vec<(usize, f64)> {
        let ms = |k| (k, self.compute.ms(self.scaling.examples(k)));
        self.scaling.replicas().into_iter().map(ms).collect()
    }

    /// Where so many replicas and ms are in the picture.
    fn at(&self, (k, ms): (usize, f64)) -> (f64, f64) {
        self.axes.at((k as f64, ms))
    }

    fn draw(&self, body: &mut String, results: &Results) {
        self.axes(body);
        let grey = "stroke=\"#57606a\" stroke-width=\"1.5\" stroke-dasharray=\"1 4\"";
        let alone = ("computing alone".to_owned(), grey.to_owned(), self.alone());
        let mut lines = vec![alone];
        for ((name, link), dash) in LINKS.into_iter().zip(["", " stroke-dasharray=\"6 4\""]) {
            for (algorithm, called) in OVER_A_LINK {
                let color = color(algorithm);
                let look = format!("stroke=\"{color}\" stroke-width=\"2\"{dash}");
                let points = self.ms(&link, algorithm);
                lines.push((format!("{called}: {name}"), look, points));
            }
        }
        let ends = lines.iter().filter_map(|(_, _, points)| points.last());
        let wanted: Vec<f64> = ends.map(|end| self.at(*end).1).collect();
        for ((label, look, points), y) in lines.iter().zip(apart(&wanted, 15.0)) {
            let points: Vec<_> = points.iter().map(|point| self.at(*point)).collect();
            svg::line(body, &points, look);
            svg::line(body, &[(RIGHT + 8.0, y), (RIGHT + 30.0, y)], look);
            text(body, (RIGHT + 36.0, y + 4.0), "", label);
        }
        // the steps that were measured on this machine, where the replicas share one memory
        for point in results.points.iter().filter(|p| p.scaling == self.scaling) {
            svg::dot(body, self.at((point.k, point.ms().median)), MEASURED);
        }
    }

    fn axes(&self, body: &mut String) {
        self.axes.lines(body, |ms| match ms < 1e3 {
            true => format!("{ms} ms"),
            false => format!("{} s", ms / 1e3),
        });
        let foot = self.axes.heights.1;
        for k in self.scaling.replicas() {
            let (x, _) = self.axes.at((k as f64, 1.0));
            text(body, (x, foot + 16.0), "middle", &k.to_string());
        }
        let middle = (LEFT + RIGHT) / 2.0;
        text(body, (middle, foot + 32.0), "middle soft", "replicas");
    }
}
