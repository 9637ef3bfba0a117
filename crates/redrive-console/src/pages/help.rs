//! What the keyboard does, and what the words mean.

use askama::Template;

use super::Answer;
use crate::frame::{Frame, render};
use crate::visitor::Visitor;

#[derive(Template)]
#[template(path = "help.html")]
struct Page {
    frame: Frame,
}

/// `GET /console/help`.
pub(super) async fn show(visitor: Visitor) -> Answer {
    render(&Page { frame: visitor.frame("Keyboard and help", "help") })
}
