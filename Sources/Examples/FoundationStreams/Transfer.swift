// Whole amounts of bytes: the library moves them in the background, and posts how far it is.

import Foundation
import StreamBrokerFoundation

enum Transfer {
  static func start(_ url: String) {
    let center = NotificationCenter.default
    _ = center.addObserver(forName: Stream.openingStepNotification, object: nil, queue: nil) { notification in
      Program.say("\(notification.userInfo?[Stream.notificationStepKey] ?? "no step")")
    }
    Stream.pair(for: url, timeout: .seconds(10), notifying: .runLoop(.current)) { result in
      guard case .success(let (input, output)) = result else { Program.fail("\(result)") }
      let meta = input.meta
      _ = center.addObserver(forName: Stream.transferProgressNotification, object: output, queue: nil) { notification in
        guard let facts = notification.userInfo else { return }
        Program.say("\(facts[Stream.notificationCompletedKey]!) of \(facts[Stream.notificationTotalKey]!)")
      }
      _ = center.addObserver(forName: Stream.transferDidEndNotification, object: input, queue: nil) { notification in
        if let error = notification.userInfo?[Stream.notificationErrorKey] { Program.fail("\(error)") }
        Program.succeed(notification.userInfo?[Stream.notificationDataKey] as? Data ?? Data(), meta)
      }
      Stream.receive(Program.sample.count, from: input)
      Stream.send(Program.sample, to: output)
    }
  }
}
