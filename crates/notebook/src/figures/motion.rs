//! Figures that move, by CSS alone. They begin again after the last stage. Without animation, or where the
//! reader asked for less motion, they are complete still pictures.

/// Stages one after another.
pub struct Motion {
    pub stages: usize,
    /// Seconds of a stage.
    pub stage: f64,
    /// Seconds after the last stage, before the first one comes again.
    pub rest: f64,
}

impl Motion {
    /// The rules for groups of three classes, each with the number of its stage from 0:
    /// `lit-0` is seen in its stage alone; `carried-0` too, and moves; `shown-0` is pale until its stage is over.
    pub fn css(&self) -> String {
        let seconds = self.seconds();
        let mut css =
            " .lit, .carried { opacity: 0 } @media (prefers-reduced-motion: no-preference) {"
                .to_owned();
        for stage in 0..self.stages {
            for class in ["lit", "carried", "shown"] {
                css += &format!(
                    " .{class}-{stage} {{ animation: {class}-{stage} {seconds}s linear infinite }}"
                );
            }
        }
        css += " }";
        (0..self.stages).for_each(|stage| css += &self.keyframes(stage));
        css
    }

    fn seconds(&self) -> f64 {
        self.stages as f64 * self.stage + self.rest
    }

    /// When a stage does what, in percent of the whole.
    fn keyframes(&self, stage: usize) -> String {
        let at = |share: f64| {
            let seconds = (stage as f64 + share) * self.stage;
            (seconds / self.seconds() * 1e3).round() / 10.0
        };
        let [begin, seen, go, near, come, end] = [0.0, 0.1, 0.15, 0.55, 0.75, 1.0].map(at);
        let by = "transform: translate(var(--x), var(--y))";
        format!(
            " @keyframes lit-{stage} {{ 0%, {begin}%, {end}%, 100% {{ opacity: 0 }} {seen}%, {come}% {{ opacity: 1 }} }} \
             @keyframes carried-{stage} {{ 0%, {begin}% {{ opacity: 0 }} {seen}%, {go}% {{ opacity: 1; transform: none }} \
             {come}% {{ opacity: 1; {by} }} {end}%, 100% {{ opacity: 0; {by} }} }} \
             @keyframes shown-{stage} {{ 0%, {near}% {{ opacity: 0.15 }} {come}%, 97% {{ opacity: 1 }} 100% {{ opacity: 0.15 }} }}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_follow_each_other_and_then_rest() {
        let motion = Motion {
            stages: 2,
            stage: 2.0,
            rest: 1.0,
        };
        let css = motion.css();
        assert!(css.contains(".lit-1 { animation: lit-1 5s linear infinite }"));
        assert!(css.contains(
            "@keyframes lit-0 { 0%, 0%, 40%, 100% { opacity: 0 } 4%, 30% { opacity: 1 } }"
        ));
        assert!(css.contains(
            "@keyframes lit-1 { 0%, 40%, 80%, 100% { opacity: 0 } 44%, 70% { opacity: 1 } }"
        ));
    }

    /// A renderer that skips what it does not know, such as `@media`, draws no group that only moves.
    #[test]
    fn a_still_picture_needs_no_animation() {
        let css = Motion {
            stages: 1,
            stage: 1.0,
            rest: 0.0,
        }
        .css();
        let (still, moving) = css
            .split_once("@media (prefers-reduced-motion: no-preference)")
            .unwrap();
        assert!(still.contains(".lit, .carried { opacity: 0 }"));
        assert!(!still.contains("animation") && moving.contains("animation"));
    }
}
