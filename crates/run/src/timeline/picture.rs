//! Draws timelines below each other: their lanes, and time from left to right.

use std::collections::BTreeSet;

use d2l::{DARK_MODE, escape};

use crate::timeline::{Span, Timeline};

const WIDTH: f64 = 760.0;
const LANE: f64 = 34.0;
const GAP: f64 = 8.0;
/// A title above the lanes of one of several timelines.
const TITLE: f64 = 26.0;
const LEGEND: f64 = 40.0;
const AXIS: f64 = 34.0;
const MARGIN: f64 = 14.0;
/// Gap between two boxes.
const SEAM: f64 = 0.5;
/// Width of a letter at most, at 12 px.
const LETTER: f64 = 6.6;
/// A lane is left out if its work takes less than this part of the time: it would be thinner than a pixel.
const LEAST: f64 = 1e-3;

/// A kind of span: its name, its colour, and that of the letters on it.
type Kind = (&'static str, &'static str, &'static str);
pub(super) const KINDS: [Kind; 9] = [
    ("data", "#8c564b", "white"),
    ("split", "#7b4fa6", "white"),
    ("forward", "#1f77b4", "white"),
    ("backward", "#d62728", "white"),
    ("all-reduce", "#ee9b30", "black"),
    ("sum", "#8f4400", "white"),
    ("wait", "url(#wait)", "#222"),
    ("update", "#1b7f3b", "white"),
    ("evaluate", "#6b6b6b", "white"),
];
/// A lane is pale where it has no span.
const IDLE: Kind = ("idle", "#eceff2", "#57606a");

/// Hatched, for a wait.
const HATCHED: &str = r##"<pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" fill="#f7f7f7"/><rect width="1.5" height="6" fill="#8c959f"/></pattern>"##;

impl Timeline {
    /// Draws a picture: a colour for each kind of span; a lane is pale where it is idle. A lane with so little work
    /// that it could not be seen is left out.
    pub fn svg(&self) -> String {
        Self::svg_beside(&[("", self)])
    }

    /// Several timelines in one picture, below each other on the same time axis, each with its title.
    ///
    /// ```
    /// let (_, one) = run::Timeline::record(|| ());
    /// let two = one.clone();
    /// let svg = run::Timeline::svg_beside(&[("k = 1", &one), ("k = 2", &two)]);
    /// assert!(svg.contains(">k = 1</text>") && svg.contains(">k = 2</text>"));
    /// ```
    pub fn svg_beside(timelines: &[(&str, &Self)]) -> String {
        let length = timelines
            .iter()
            .map(|(_, timeline)| timeline.length())
            .fold(1.0, f64::max);
        let seen: Vec<(&str, Self)> = timelines
            .iter()
            .map(|(title, timeline)| (*title, timeline.seen()))
            .collect();
        let lanes = seen.iter().flat_map(|(_, timeline)| timeline.lanes());
        let letters = lanes.map(|lane| lane.chars().count()).max();
        let left = 2.0 * MARGIN + LETTER * letters.unwrap_or(0) as f64;
        let mut lanes = Picture {
            svg: String::new(),
            left,
            unit: (WIDTH - MARGIN - left) / length,
        };
        let mut bottom = LEGEND;
        for (title, timeline) in &seen {
            bottom = lanes.timeline(title, timeline, bottom);
        }
        let mut frame = Picture {
            svg: String::new(),
            ..lanes
        };
        frame.legend(&seen);
        frame.axis(length, bottom);
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" role="img" aria-label="{label}"><defs>{HATCHED}</defs><rect width="100%" height="100%" fill="white"/>{drawn}{DARK_MODE}</svg>"#,
            height = bottom + AXIS,
            label = escape(&in_words(timelines)),
            drawn = frame.svg + &lanes.svg,
        ) + "\n"
    }

    /// Without the lanes that have hardly any work.
    fn seen(&self) -> Self {
        let least = LEAST * self.length();
        let work = |lane: &str| -> f64 {
            let spans = self.spans.iter().filter(|span| &*span.lane == lane);
            spans.map(|span| span.end - span.begin).sum()
        };
        let mut lanes = self.lanes();
        lanes.retain(|lane| work(lane) >= least);
        let shown = |span: &&Span| lanes.contains(&&*span.lane);
        Self {
            spans: self.spans.iter().filter(shown).cloned().collect(),
        }
    }
}

/// The picture so far, and its scale of time from left to right.
struct Picture {
    svg: String,
    left: f64,
    /// Pixels of a µs.
    unit: f64,
}

impl Picture {
    /// Text with more attributes than its place.
    fn text(&mut self, x: f64, y: f64, attributes: &str, text: &str) {
        let text = escape(text);
        self.svg += &format!(r##"<text x="{x:.1}" y="{y}"{attributes}>{text}</text>"##);
    }

    /// The kinds that occur, in a row.
    fn legend(&mut self, timelines: &[(&str, Timeline)]) {
        let names: BTreeSet<&str> = timelines
            .iter()
            .flat_map(|(_, timeline)| timeline.spans())
            .map(|span| span.name)
            .collect();
        let kinds = KINDS.iter().filter(|kind| names.contains(kind.0));
        let mut x = MARGIN;
        for (name, fill, _) in kinds.chain([&IDLE]) {
            self.svg += &format!(
                r##"<rect x="{x:.1}" y="13" width="13" height="13" fill="{fill}" stroke="#888" stroke-width="0.5"/>"##
            );
            self.text(x + 18.0, 24.0, "", name);
            x += 36.0 + LETTER * name.len() as f64;
        }
    }

    /// Times below the lanes, with lines up through them.
    fn axis(&mut self, length: f64, bottom: f64) {
        let step = round_step(length / 7.0);
        let decimals = (-(step / 1e3).log10().floor()).max(0.0) as usize;
        for i in 0..=(length / step) as usize {
            let at = i as f64 * step;
            let x = self.left + at * self.unit;
            let top = LEGEND - 4.0;
            self.svg += &format!(r##"<path d="M{x:.1} {top}V{bottom}" stroke="#ddd"/>"##);
            let unit = if i == 0 { " ms" } else { "" };
            let time = format!("{:.decimals$}{unit}", at / 1e3);
            let attributes = r##" text-anchor="middle" fill="#444""##;
            self.text(x, bottom + 16.0, attributes, &time);
        }
    }

    /// The lanes of a timeline below `top`, with its title; returns where they end.
    fn timeline(&mut self, title: &str, timeline: &Timeline, mut top: f64) -> f64 {
        if !title.is_empty() {
            self.text(MARGIN, top + 17.0, r##" font-weight="600""##, title);
            top += TITLE;
        }
        let left = self.left;
        let width = timeline.length() * self.unit;
        for lane in timeline.lanes() {
            let x = left - MARGIN / 2.0;
            let y = top + LANE / 2.0 + 4.0;
            self.text(x, y, r##" text-anchor="end""##, lane);
            self.svg += &format!(
                r##"<rect x="{left:.2}" y="{top}" width="{width:.2}" height="{LANE}" fill="{}"/>"##,
                IDLE.1
            );
            for span in timeline.spans().iter().filter(|span| &*span.lane == lane) {
                self.span(span, top);
            }
            top += LANE + GAP;
        }
        top
    }

    /// A span's box, in the lower half of the one in which it lies, with its name where that has room.
    fn span(&mut self, span: &Span, top: f64) {
        let (_, fill, ink) = KINDS
            .iter()
            .find(|kind| kind.0 == span.name)
            .unwrap_or(&IDLE);
        let height = LANE / f64::powi(2.0, span.depth as i32);
        let x = self.left + span.begin * self.unit;
        let y = top + LANE - height;
        let time = span.end - span.begin;
        let width = (time * self.unit - SEAM).max(1.0);
        let name = span.name;
        let lane = escape(&span.lane);
        self.svg += &format!(
            r##"<rect x="{x:.2}" y="{y}" width="{width:.2}" height="{height}" fill="{fill}"><title>{name}, {lane}: {time:.0} µs</title></rect>"##
        );
        let labels = [format!("{name} {}", ms(time)), name.to_owned()];
        let fits = |label: &&String| LETTER * label.len() as f64 + 10.0 <= width;
        if let (Some(label), true) = (labels.iter().find(fits), height >= 14.0) {
            self.text(x + 4.0, y + 13.0, &format!(r##" fill="{ink}""##), label);
        }
    }
}

/// The titles of the timelines and their lengths.
fn in_words(timelines: &[(&str, &Timeline)]) -> String {
    let words: Vec<String> = timelines
        .iter()
        .map(|(title, timeline)| match *title {
            "" => ms(timeline.length()),
            title => format!("{title}, {}", ms(timeline.length())),
        })
        .collect();
    format!("Timeline of {}", words.join(", and of "))
}

fn ms(us: f64) -> String {
    let decimals = if us < 1e5 { 1 } else { 0 };
    format!("{:.decimals$} ms", us / 1e3)
}

/// The next of 1, 2, 5, 10, 20, … above.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0]
        .map(|step| step * power)
        .into_iter()
        .find(|step| *step >= least)
        .unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::tests::span;

    /// The number after `name="`.
    fn number(tag: &str, name: &str) -> f64 {
        let after = tag.split(&format!(" {name}=\"")).nth(1).unwrap();
        after.split('"').next().unwrap().parse().unwrap()
    }

    /// The tags of the spans.
    fn boxes(svg: &str) -> Vec<&str> {
        let tags = svg.split("<rect");
        tags.filter(|tag| tag.contains("<title>")).collect()
    }

    #[test]
    fn boxes_are_where_and_as_wide_as_their_times_say() {
        let timeline = Timeline::new(vec![
            span("all-reduce", "a<b", 1000.0, 3000.0, 0),
            span("wait", "a<b", 2000.0, 3000.0, 1),
            span("update", "b", 3000.0, 5000.0, 0),
        ]);
        let svg = Timeline::svg_beside(&[("", &timeline)]);
        let [all_reduce, wait, update] = boxes(&svg)[..] else {
            panic!("{svg}");
        };
        let (x, width) = (|b| number(b, "x"), |b| number(b, "width") + SEAM);
        assert!((width(all_reduce) - 2.0 * width(wait)).abs() < 0.02);
        assert!((x(update) - x(wait) - width(wait)).abs() < 0.02);
        assert!((x(update) + width(update) - (WIDTH - MARGIN)).abs() < 0.02);
        // in the lower half, hatched
        assert_eq!(number(all_reduce, "y") + LANE / 2.0, number(wait, "y"));
        assert!(wait.contains("url(#wait)") && all_reduce.contains(">all-reduce 2.0 ms<"));
        assert_eq!(number(update, "y"), LEGEND + LANE + GAP);
        assert!(svg.contains(">a&lt;b</text>") && !svg.contains("a<b"));
        assert!(svg.contains("aria-label=\"Timeline of 4.0 ms\""), "{svg}");
    }

    #[test]
    fn nothing_can_be_drawn() {
        assert!(Timeline::new(vec![]).svg().ends_with("</svg>\n"));
        assert!(Timeline::svg_beside(&[]).ends_with("</svg>\n"));
    }

    #[test]
    fn a_lane_is_pale_from_the_begin_to_the_end_of_its_timeline() {
        let timeline = Timeline::new(vec![
            span("forward", "a", 0.0, 30.0, 0),
            span("update", "b", 90.0, 100.0, 0),
        ]);
        let svg = timeline.svg();
        let pale: Vec<&str> = svg
            .split("<rect")
            .filter(|b| b.contains(IDLE.1))
            .filter(|b| b.contains("height=\"34\""))
            .collect();
        let update = svg.split("<rect").find(|b| b.contains("<title>update"));
        let end = |b| number(b, "x") + number(b, "width");
        assert!(pale.len() == 2 && svg.contains(">idle</text>"), "{svg}");
        assert!((end(pale[0]) - end(update.unwrap()) - SEAM).abs() < 0.02);
    }

    #[test]
    fn a_lane_with_hardly_any_work_is_left_out() {
        let step = |split| {
            Timeline::new(vec![
                span("split", "main", 0.0, split, 0),
                span("forward", "cpu(0)", 20.0, 1e4, 0),
            ])
        };
        for (split, lanes) in [(5.0, 1), (15.0, 2)] {
            let svg = step(split).svg();
            assert_eq!(svg.matches(r#"text-anchor="end""#).count(), lanes, "{svg}");
            assert_eq!(svg.contains(">split</text>"), lanes == 2, "{svg}");
            assert!(step(split).chrome().contains("main"));
        }
    }

    #[test]
    fn several_timelines_have_one_scale() {
        let [one, two] =
            [400.0, 100.0].map(|end| Timeline::new(vec![span("forward", "main", 0.0, end, 0)]));
        let svg = Timeline::svg_beside(&[("k = 1", &one), ("k = 2", &two)]);
        let [one, two] = boxes(&svg)[..] else {
            panic!("{svg}");
        };
        let width = |b| number(b, "width") + SEAM;
        assert!((width(one) - 4.0 * width(two)).abs() < 0.05);
        assert_eq!(number(two, "y") - number(one, "y"), LANE + GAP + TITLE);
        let words = "\"Timeline of k = 1, 0.4 ms, and of k = 2, 0.1 ms\"";
        assert!(svg.contains(words), "{svg}");
    }
}
