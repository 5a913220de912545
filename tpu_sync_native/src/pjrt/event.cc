#include "pjrt/event.h"

#include <utility>

namespace tpu_sync_native::pjrt {
namespace {

struct Waiting {
  std::shared_ptr<const Library> library;
  Event* event;
  std::function<void(const std::string&)> done;
};

std::string Destroy(const Library& library, Event* event) {
  EventDestroy destroy;
  destroy.event = event;
  return library.Try(&destroy);
}

void Finish(std::unique_ptr<Waiting> waiting, std::string error) {
  const std::string not_destroyed = Destroy(*waiting->library, waiting->event);
  if (error.empty()) error = not_destroyed;
  waiting->done(error);
}

// Takes `waiting` when it is not refused.
std::string Ask(std::unique_ptr<Waiting>* waiting) {
  EventOnReady args;
  args.event = (*waiting)->event;
  args.callback = [](Error* error, void* user) {
    std::unique_ptr<Waiting> came(static_cast<Waiting*>(user));
    std::string text = came->library->Text("event", error);
    Finish(std::move(came), std::move(text));
  };
  // The callback may come before the call returns, and ends it.
  Waiting* const given = waiting->release();
  args.user = given;
  const std::shared_ptr<const Library> library = given->library;
  std::string refused = library->Try(&args);
  if (!refused.empty()) waiting->reset(given);
  return refused;
}

}  // namespace

void OnReady(const std::shared_ptr<const Library>& library, Event* event,
             std::function<void(const std::string& error)> done) {
  auto waiting = std::make_unique<Waiting>(library, event, std::move(done));
  const std::string refused = Ask(&waiting);
  if (refused.empty()) return;
  // Nobody will call: what the event stands for may still be under way, so it is waited for here.
  EventAwait await;
  await.event = event;
  const std::string failed = library->Try(&await);
  Finish(std::move(waiting), failed.empty() ? refused : failed);
}

std::string OnReadyOrRefused(const std::shared_ptr<const Library>& library, Event* event,
                             std::function<void(const std::string& error)> done) {
  auto waiting = std::make_unique<Waiting>(library, event, std::move(done));
  std::string refused = Ask(&waiting);
  // The refusal is what is told; an event that cannot even be destroyed is lost.
  if (!refused.empty()) Destroy(*library, event);
  return refused;
}

}  // namespace tpu_sync_native::pjrt
