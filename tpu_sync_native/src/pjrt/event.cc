#include "pjrt/event.h"

#include <utility>

namespace tpu_sync_native::pjrt {
namespace {

struct Waiting {
  std::shared_ptr<const Library> library;
  Event* event;
  std::function<void(const std::string&)> done;
};

void Finish(std::unique_ptr<Waiting> waiting, std::string error) {
  EventDestroy destroy;
  destroy.event = waiting->event;
  const std::string not_destroyed = waiting->library->Try(&destroy);
  if (error.empty()) error = not_destroyed;
  waiting->done(error);
}

}  // namespace

void OnReady(const std::shared_ptr<const Library>& library, Event* event,
             std::function<void(const std::string& error)> done) {
  auto waiting = std::make_unique<Waiting>(library, event, std::move(done));
  EventOnReady args;
  args.event = event;
  args.callback = [](Error* error, void* user) {
    std::unique_ptr<Waiting> came(static_cast<Waiting*>(user));
    std::string text = came->library->Text("event", error);
    Finish(std::move(came), std::move(text));
  };
  args.user = waiting.get();
  const std::string refused = library->Try(&args);
  if (refused.empty()) {
    waiting.release();  // the callback's
    return;
  }
  // Nobody will call: what the event stands for may still be under way, so it is waited for here.
  EventAwait await;
  await.event = event;
  const std::string failed = library->Try(&await);
  Finish(std::move(waiting), failed.empty() ? refused : failed);
}

}  // namespace tpu_sync_native::pjrt
