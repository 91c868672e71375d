//! Taking what queued, as one.

use tokio::sync::mpsc;

/// How often whoever is about to ask gets its turn before a batch leaves.
const TURNS: usize = 2;

/// Waits for a first item, then takes all that are there or come from tasks that are ready to run, at
/// most `max`. Nothing waits for a timer: at low load a turn of the others is a few microseconds, and
/// under load it is what fills the batches. 0: nobody is left who could send.
///
/// # Cancel safety
///
/// Safe: what was taken is in `batch`.
pub(crate) async fn gather<T>(
    queue: &mut mpsc::Receiver<T>,
    batch: &mut Vec<T>,
    max: usize,
) -> usize {
    let mut taken = queue.recv_many(batch, max).await;
    for _ in 0..TURNS {
        if taken == 0 || taken == max {
            break;
        }
        tokio::task::yield_now().await;
        while taken < max
            && let Ok(item) = queue.try_recv()
        {
            batch.push(item);
            taken += 1;
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_batch_is_what_is_there_and_what_is_about_to_come() {
        let (sender, mut queue) = mpsc::channel(10);
        let mut batch = Vec::new();
        for number in 0..3 {
            sender.send(number).await.unwrap();
        }
        let late = sender.clone();
        let (taken, sent) =
            tokio::join!(gather(&mut queue, &mut batch, 10), async { late.send(3).await });
        sent.unwrap();
        assert_eq!((taken, batch.as_slice()), (4, &[0, 1, 2, 3][..]));
    }

    #[tokio::test]
    async fn a_batch_is_bounded_and_the_end_is_told() {
        let (sender, mut queue) = mpsc::channel(10);
        for number in 0..5 {
            sender.send(number).await.unwrap();
        }
        drop(sender);
        let mut batch = Vec::new();
        assert_eq!(gather(&mut queue, &mut batch, 3).await, 3);
        assert_eq!(gather(&mut queue, &mut batch, 3).await, 2);
        assert_eq!(gather(&mut queue, &mut batch, 3).await, 0);
        assert_eq!(batch, [0, 1, 2, 3, 4]);
    }
}
