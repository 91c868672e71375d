//! A request body that asks the gate before its first byte.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use thiserror::Error;

use crate::tools::SendGate;

/// The gate did not open: nothing of the request may be written.
#[derive(Debug, Clone, Copy, Error)]
#[error("the request was given up before it was sent")]
pub(super) struct GateShut;

/// The arguments, all in one frame, behind the gate.
pub(super) struct GatedBody {
    args: Option<Bytes>,
    gate: Arc<SendGate>,
}

impl GatedBody {
    pub(super) fn new(args: Bytes, gate: Arc<SendGate>) -> Self {
        Self { args: Some(args), gate }
    }
}

impl Body for GatedBody {
    type Data = Bytes;
    type Error = GateShut;

    /// Never pending: hyper must have no reason to flush the head first.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, GateShut>>> {
        if !self.gate.open() {
            return Poll::Ready(Some(Err(GateShut)));
        }
        Poll::Ready(self.args.take().map(|args| Ok(Frame::data(args))))
    }

    fn is_end_stream(&self) -> bool {
        self.args.is_none()
    }

    /// Exact, so that the request has a `Content-Length`.
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.args.as_ref().map_or(0, Bytes::len) as u64)
    }
}
