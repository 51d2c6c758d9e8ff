//! A sheet of images as an SVG picture. Pixels are drawn as paths, not embedded as a picture in the
//! picture: those GitHub's content policy keeps out.

use std::fmt::Write;

use anyhow::{Result, bail, ensure};
use candle_core::{DType, Tensor};

use crate::svg::{DARK_MODE, escape};

/// Pixels of the sheet for each pixel of an image.
const SCALE: usize = 3;
/// Between columns, between rows and around all.
const GAP: usize = 12;
/// The height of a line of text.
const LINE: usize = 17;
/// Columns are at least so wide, for the text.
const COLUMN: usize = 84;
/// About the width of a letter.
const LETTER: usize = 7;
/// Images in a row.
const PER_ROW: usize = 6;

const STYLE: &str = "text { font: 13px system-ui, sans-serif; fill: #24292f; text-anchor: middle } \
    .right { fill: #1a7f37 } .wrong { fill: #b3001b; font-weight: 700 }";

/// Draws images `x` (B, 1, H, W) with values from 0, black, to 1, white, six in a row, each with its label and what
/// it was taken for: a mistake has a frame and a ✗. Gives an SVG picture ("The Image Classification Dataset").
///
/// ```
/// let (_, test_iter) = dataset::load(&dataset::Options {
///     data: Some(dataset::Data::Synthetic),
///     limit_train: Some(1),
///     limit_test: Some(4),
///     ..dataset::Options::default()
/// })?
/// .iters(4)?;
/// for batch in test_iter.in_order() {
///     let (x, y) = batch?;
///     let labels = dataset::get_fashion_mnist_labels(&y)?;
///     let svg = d2l::show_images(&x, &labels, &["coat"; 4])?;
///     assert!(svg.contains("aria-label=\"4 images"));
/// }
/// # anyhow::Ok(())
/// ```
///
/// # Errors
/// If `x` has another shape or a value that is not from 0 to 1, there is no image, or not one label and one prediction for each.
pub fn show_images(x: &Tensor, labels: &[&str], predictions: &[&str]) -> Result<String> {
    let [n, height, width] = check(x, labels, predictions)?;
    let images = x.to_dtype(DType::F32)?.reshape((n, height, width))?;
    let images: Vec<Vec<Vec<f32>>> = images.to_vec3()?;
    for (i, image) in images.iter().enumerate() {
        let is_outside = |value: &&f32| !(-1e-3..=1.001).contains(*value); // with rounding
        if let Some(value) = image.iter().flatten().find(is_outside) {
            bail!("image {i} has the value {value}; expected 0 to 1");
        }
    }
    // the mark of a mistake stands beside its text
    let longest = labels
        .iter()
        .chain(predictions)
        .map(|text| text.chars().count() + 2)
        .max()
        .unwrap_or_default();
    let column = (width * SCALE).max(COLUMN).max(longest * LETTER);
    let row = height * SCALE + 2 * LINE;
    let mut body = String::new();
    for (i, image) in images.iter().enumerate() {
        let left = GAP + i % PER_ROW * (column + GAP) + (column - width * SCALE) / 2;
        let top = GAP + i / PER_ROW * (row + GAP);
        let _ = writeln!(body, "<g transform=\"translate({left} {top})\">");
        pixels(&mut body, image);
        caption(&mut body, width, height, labels[i], predictions[i]);
        body.push_str("</g>\n");
    }
    let sheet_width = GAP + n.min(PER_ROW) * (column + GAP);
    let sheet_height = GAP + n.div_ceil(PER_ROW) * (row + GAP);
    let words = words(labels, predictions);
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {sheet_width} {sheet_height}\" \
         width=\"{sheet_width}\" height=\"{sheet_height}\" role=\"img\" aria-label=\"{words}\">\n\
         <style>{STYLE}</style>\n\
         <rect width=\"{sheet_width}\" height=\"{sheet_height}\" rx=\"8\" fill=\"#ffffff\"/>\n{body}{DARK_MODE}\n</svg>\n"
    ))
}

/// The number of images, their height and their width, where everything fits together.
fn check(x: &Tensor, labels: &[&str], predictions: &[&str]) -> Result<[usize; 3]> {
    let (n, channels, height, width) = x.dims4()?;
    ensure!(
        channels == 1,
        "the images have {channels} channels; expected 1, (B, 1, H, W)"
    );
    ensure!(n > 0, "there are no images; give at least 1");
    for (what, texts) in [("labels", labels), ("predictions", predictions)] {
        let count = texts.len();
        ensure!(
            count == n,
            "{count} {what} for {n} images; give one for each image"
        );
    }
    Ok([n, height, width])
}

/// An image in 16 greys: for each a path of the stretches of a row that have it.
fn pixels(body: &mut String, image: &[Vec<f32>]) {
    let mut paths: [String; 16] = Default::default();
    for (y, row) in image.iter().enumerate() {
        let mut x = 0;
        for stretch in row.chunk_by(|a, b| grey(*a) == grey(*b)) {
            let path = &mut paths[grey(stretch[0])];
            let _ = write!(path, "M{x} {y}h{}", stretch.len());
            x += stretch.len();
        }
    }
    let width = image[0].len();
    let height = image.len();
    let _ = writeln!(
        body,
        "<g class=\"photo\" transform=\"scale({SCALE})\" shape-rendering=\"crispEdges\">\
         <rect width=\"{width}\" height=\"{height}\"/><g transform=\"translate(0 .5)\">"
    );
    // black is there already
    for (grey, path) in paths.iter().enumerate().skip(1) {
        if !path.is_empty() {
            let _ = writeln!(
                body,
                "<path stroke=\"#{grey:x}{grey:x}{grey:x}\" d=\"{path}\"/>"
            );
        }
    }
    body.push_str("</g></g>\n");
}

/// The nearest of 16 greys.
fn grey(value: f32) -> usize {
    (value.clamp(0.0, 1.0) * 15.0).round() as usize
}

/// Writes the text below an image, and frames a mistake.
fn caption(body: &mut String, width: usize, height: usize, label: &str, prediction: &str) {
    let width = width * SCALE;
    let height = height * SCALE;
    let mut line = |i: usize, class: &str, text: String| {
        let x = width / 2;
        let y = height + i * LINE - 2;
        let text = escape(&text);
        let _ = writeln!(
            body,
            "<text x=\"{x}\" y=\"{y}\" class=\"{class}\">{text}</text>"
        );
    };
    line(1, "label", label.to_owned());
    if prediction == label {
        line(2, "right", "✓".to_owned());
        return;
    }
    line(2, "wrong", format!("✗ {prediction}"));
    let width = width + 4;
    let height = height + 4;
    let _ = writeln!(
        body,
        "<rect x=\"-2\" y=\"-2\" width=\"{width}\" height=\"{height}\" fill=\"none\" \
         stroke=\"#b3001b\" stroke-width=\"4\"/>"
    );
}

/// Describes in words what the sheet shows.
fn words(labels: &[&str], predictions: &[&str]) -> String {
    let n = labels.len();
    let plural = if n == 1 { "" } else { "s" };
    let mistakes: Vec<_> = labels
        .iter()
        .zip(predictions)
        .filter(|(l, p)| l != p)
        .map(|(l, p)| format!("{l} taken for {p}"))
        .collect();
    let count = match mistakes.len() {
        0 => "no mistake".to_owned(),
        1 => format!("1 mistake: {}", mistakes[0]),
        m => format!("{m} mistakes: {}", mistakes.join(", ")),
    };
    escape(&format!("{n} image{plural} with predictions, {count}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    /// The greys of each image, read from the picture.
    fn decode(svg: &str, height: usize, width: usize) -> Vec<Vec<Vec<usize>>> {
        let image = |part: &str| {
            let mut image = vec![vec![0; width]; height];
            for path in part.split("<path stroke=\"#").skip(1) {
                let grey = usize::from_str_radix(&path[..1], 16).unwrap();
                let d = path.split('"').nth(2).unwrap();
                for stretch in d.split('M').skip(1) {
                    let numbers = stretch.split([' ', 'h']).map(|n| n.parse().unwrap());
                    let [x, y, len]: [usize; 3] = numbers.collect::<Vec<_>>().try_into().unwrap();
                    image[y][x..x + len].fill(grey);
                }
            }
            image
        };
        svg.split("crispEdges").skip(1).map(image).collect()
    }

    /// Bytes would all be white.
    #[test]
    fn values_that_are_no_greys_are_named() -> Result<()> {
        for value in [255.0, -0.1, f32::NAN] {
            let mut values = vec![0.5f32; 2 * 9];
            values[9] = value;
            let x = Tensor::from_vec(values, (2, 1, 3, 3), &Device::Cpu)?;
            let error = show_images(&x, &["a"; 2], &["a"; 2])
                .unwrap_err()
                .to_string();
            let says = format!("image 1 has the value {value}; expected 0 to 1");
            assert_eq!(error, says);
        }
        Ok(())
    }

    #[test]
    fn a_long_label_has_room() -> Result<()> {
        let x = Tensor::zeros((1, 1, 3, 3), DType::F32, &Device::Cpu)?;
        let svg = show_images(&x, &["a label of thirty letters, or so"], &["a"])?;
        let width = svg.split("viewBox=\"0 0 ").nth(1).unwrap();
        let width: usize = width.split(' ').next().unwrap().parse()?;
        assert!(width > 30 * LETTER, "{width}");
        Ok(())
    }

    #[test]
    fn what_is_drawn_is_what_was_given() -> Result<()> {
        let data = dataset::load(&dataset::Options {
            data: Some(dataset::Data::Synthetic),
            limit_train: Some(1),
            limit_test: Some(5),
            ..dataset::Options::default()
        })?;
        let (_, test_iter) = data.iters(5)?;
        let (x, y) = test_iter.in_order().next().unwrap()?;
        let labels = dataset::get_fashion_mnist_labels(&y)?;
        let svg = show_images(&x, &labels, &labels)?;
        let images = decode(&svg, 28, 28);
        let expected: Vec<Vec<Vec<f32>>> = x.squeeze(1)?.to_vec3()?;
        assert_eq!(images.len(), 5);
        assert!(images.iter().flatten().flatten().any(|&g| g > 8));
        for (drawn, given) in images.iter().flatten().zip(expected.iter().flatten()) {
            for (grey, value) in drawn.iter().zip(given) {
                let difference = (*grey as f32 / 15.0 - value).abs();
                assert!(difference <= 0.5 / 15.0 + 1e-6, "{grey} for {value}");
            }
        }
        assert!(svg.contains("5 images with predictions, no mistake"));
        Ok(())
    }

    #[test]
    fn a_mistake_has_a_frame_and_a_cross() -> Result<()> {
        let x = Tensor::zeros((3, 1, 4, 5), DType::F32, &Device::Cpu)?;
        let (b, d, e) = ("<b> & \"c\"", "d", "<e>");
        let svg = show_images(&x, &["a", b, d], &["a", b, e])?;
        let parts = svg.split("<g transform=\"translate(");
        let images: Vec<&str> = parts.filter(|p| p.contains("class=\"label\"")).collect();
        assert_eq!(images.len(), 3, "{svg}");
        for (i, mistaken) in [(0, false), (1, false), (2, true)] {
            assert_eq!(images[i].contains("✗ &lt;e>"), mistaken, "{svg}");
            assert_eq!(images[i].contains("fill=\"none\""), mistaken, "{svg}");
            assert_eq!(images[i].contains("✓"), !mistaken, "{svg}");
        }
        assert!(svg.contains("3 images with predictions, 1 mistake: d taken for &lt;e>"));
        assert!(svg.contains("&lt;b> &amp; &quot;c&quot;</text>"));
        Ok(())
    }

    #[test]
    fn what_does_not_fit_together_is_named() -> Result<()> {
        let images = |dims: [usize; 4]| Tensor::zeros(&dims, DType::F32, &Device::Cpu);
        let x = images([2, 1, 4, 4])?;
        let error = |x: &Tensor, labels: &[&str], predictions: &[&str]| {
            show_images(x, labels, predictions).unwrap_err().to_string()
        };
        let says = "1 labels for 2 images; give one for each image";
        assert_eq!(error(&x, &["a"], &["a"]), says);
        let says = "3 predictions for 2 images; give one for each image";
        assert_eq!(error(&x, &["a", "b"], &["a", "b", "c"]), says);
        let says = "the images have 3 channels; expected 1, (B, 1, H, W)";
        assert_eq!(error(&images([1, 3, 4, 4])?, &["a"], &["a"]), says);
        Ok(())
    }
}
