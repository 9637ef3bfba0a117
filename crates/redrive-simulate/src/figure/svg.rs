//! The elements of an SVG image: a page that follows light and dark themes, text, lines.

use std::fmt::Write as _;

/// The number of colours. People with colour blindness can distinguish them.
pub(super) const COLOURS: usize = 7;

/// An SVG image under construction.
pub(super) struct Picture {
    width: f64,
    height: f64,
    title: String,
    body: String,
}

/// The point of a text that is placed at its coordinates.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Start,
    Middle,
    End,
}

impl Picture {
    pub(super) fn new(width: f64, height: f64, title: &str) -> Self {
        Self { width, height, title: escape(title), body: String::new() }
    }

    pub(super) fn text(&mut self, x: f64, y: f64, side: Side, class: &str, text: &str) {
        let anchor = match side {
            Side::Start => "start",
            Side::Middle => "middle",
            Side::End => "end",
        };
        let text = escape(text);
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" class="{class}">{text}</text>"#
        );
    }

    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            self.body,
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" class="{class}"/>"#
        );
    }

    pub(super) fn path(&mut self, steps: &str, class: &str) {
        let _ = writeln!(self.body, r#"<path d="{steps}" class="{class}"/>"#);
    }

    pub(super) fn finish(self) -> String {
        let Self { width, height, title, body } = self;
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>{title}</title>
<style>{STYLE}</style>
<rect width="100%" height="100%" class="page"/>
{body}</svg>
"#
        )
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const STYLE: &str = "
text { font: 12px system-ui, sans-serif; fill: #1b1f24; }
.title { font-size: 15px; font-weight: 600; }
.name { font-weight: 600; }
.small { font-size: 11px; fill: #57606a; }
.page { fill: #ffffff; }
.axis { stroke: #57606a; stroke-width: 1; }
.grid { stroke: #d8dee4; stroke-width: 1; }
.mark { stroke: #57606a; stroke-width: 1.5; stroke-dasharray: 5 4; }
.line { fill: none; stroke-width: 2; }
.area { stroke: none; }
.c0 { stroke: #b3420a; fill: #b3420a; } .c1 { stroke: #8a6100; fill: #8a6100; }
.c2 { stroke: #0a6e55; fill: #0a6e55; } .c3 { stroke: #0063a6; fill: #0063a6; }
.c4 { stroke: #9c3f78; fill: #9c3f78; } .c5 { stroke: #37707f; fill: #37707f; }
.c6 { stroke: #555d66; fill: #555d66; }
path.line { fill: none; } path.area { stroke: none; }
.c1.line { stroke-dasharray: 7 3; } .c2.line { stroke-dasharray: 3 3; } .c4.line { stroke-dasharray: 9 3 2 3; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .small { fill: #a5afba; } .page { fill: #0d1117; }
.axis, .mark { stroke: #a5afba; } .grid { stroke: #30363d; }
.c0 { stroke: #ff8a5c; fill: #ff8a5c; } .c1 { stroke: #e3b341; fill: #e3b341; }
.c2 { stroke: #3fcf9f; fill: #3fcf9f; } .c3 { stroke: #6cb6ff; fill: #6cb6ff; }
.c4 { stroke: #e59ac6; fill: #e59ac6; } .c5 { stroke: #7fc4d4; fill: #7fc4d4; }
.c6 { stroke: #b7bfc8; fill: #b7bfc8; }
path.line { fill: none; } path.area { stroke: none; }
}
";
