// xterm.js, the terminal emulator of the page, in the binary: the modules of Debian's package node-xterm as they are, for
// AdminFile.swift, which makes one script of them. (Debian 12's libjs-xterm has xterm.css; its xterm.js is broken: it
// calls `require`, which no browser has.) Where the package is not installed, this is empty, and the page says so.

#include "CAdminPage.h"

#pragma clang diagnostic ignored "-Wc23-extensions"

#if __has_embed("/usr/share/nodejs/xterm/lib/public/Terminal.js")

#define TEXT(path) #path
#define MODULE(path) TEXT(/usr/share/nodejs/xterm/lib/path)

static const unsigned char xterm_css[] = {
#embed MODULE(xterm.css)
};
static const unsigned char AccessibilityManager[] = {
#embed MODULE(AccessibilityManager.js)
};
static const unsigned char Buffer[] = {
#embed MODULE(Buffer.js)
};
static const unsigned char BufferLine[] = {
#embed MODULE(BufferLine.js)
};
static const unsigned char BufferSet[] = {
#embed MODULE(BufferSet.js)
};
static const unsigned char CharWidth[] = {
#embed MODULE(CharWidth.js)
};
static const unsigned char CompositionHelper[] = {
#embed MODULE(CompositionHelper.js)
};
static const unsigned char EscapeSequenceParser[] = {
#embed MODULE(EscapeSequenceParser.js)
};
static const unsigned char InputHandler[] = {
#embed MODULE(InputHandler.js)
};
static const unsigned char Linkifier[] = {
#embed MODULE(Linkifier.js)
};
static const unsigned char SelectionManager[] = {
#embed MODULE(SelectionManager.js)
};
static const unsigned char SelectionModel[] = {
#embed MODULE(SelectionModel.js)
};
static const unsigned char SoundManager[] = {
#embed MODULE(SoundManager.js)
};
static const unsigned char Strings[] = {
#embed MODULE(Strings.js)
};
static const unsigned char Terminal[] = {
#embed MODULE(Terminal.js)
};
static const unsigned char Viewport[] = {
#embed MODULE(Viewport.js)
};
static const unsigned char common_CircularList[] = {
#embed MODULE(common/CircularList.js)
};
static const unsigned char common_EventEmitter[] = {
#embed MODULE(common/EventEmitter.js)
};
static const unsigned char common_Lifecycle[] = {
#embed MODULE(common/Lifecycle.js)
};
static const unsigned char common_data_EscapeSequences[] = {
#embed MODULE(common/data/EscapeSequences.js)
};
static const unsigned char core_data_Charsets[] = {
#embed MODULE(core/data/Charsets.js)
};
static const unsigned char core_input_Keyboard[] = {
#embed MODULE(core/input/Keyboard.js)
};
static const unsigned char handlers_AltClickHandler[] = {
#embed MODULE(handlers/AltClickHandler.js)
};
static const unsigned char handlers_Clipboard[] = {
#embed MODULE(handlers/Clipboard.js)
};
static const unsigned char public_Terminal[] = {
#embed MODULE(public/Terminal.js)
};
static const unsigned char renderer_BaseRenderLayer[] = {
#embed MODULE(renderer/BaseRenderLayer.js)
};
static const unsigned char renderer_CharacterJoinerRegistry[] = {
#embed MODULE(renderer/CharacterJoinerRegistry.js)
};
static const unsigned char renderer_ColorManager[] = {
#embed MODULE(renderer/ColorManager.js)
};
static const unsigned char renderer_CursorRenderLayer[] = {
#embed MODULE(renderer/CursorRenderLayer.js)
};
static const unsigned char renderer_GridCache[] = {
#embed MODULE(renderer/GridCache.js)
};
static const unsigned char renderer_LinkRenderLayer[] = {
#embed MODULE(renderer/LinkRenderLayer.js)
};
static const unsigned char renderer_Renderer[] = {
#embed MODULE(renderer/Renderer.js)
};
static const unsigned char renderer_SelectionRenderLayer[] = {
#embed MODULE(renderer/SelectionRenderLayer.js)
};
static const unsigned char renderer_TextRenderLayer[] = {
#embed MODULE(renderer/TextRenderLayer.js)
};
static const unsigned char renderer_atlas_BaseCharAtlas[] = {
#embed MODULE(renderer/atlas/BaseCharAtlas.js)
};
static const unsigned char renderer_atlas_CharAtlasCache[] = {
#embed MODULE(renderer/atlas/CharAtlasCache.js)
};
static const unsigned char renderer_atlas_CharAtlasUtils[] = {
#embed MODULE(renderer/atlas/CharAtlasUtils.js)
};
static const unsigned char renderer_atlas_DynamicCharAtlas[] = {
#embed MODULE(renderer/atlas/DynamicCharAtlas.js)
};
static const unsigned char renderer_atlas_LRUMap[] = {
#embed MODULE(renderer/atlas/LRUMap.js)
};
static const unsigned char renderer_atlas_NoneCharAtlas[] = {
#embed MODULE(renderer/atlas/NoneCharAtlas.js)
};
static const unsigned char renderer_atlas_StaticCharAtlas[] = {
#embed MODULE(renderer/atlas/StaticCharAtlas.js)
};
static const unsigned char renderer_atlas_Types[] = {
#embed MODULE(renderer/atlas/Types.js)
};
static const unsigned char renderer_dom_DomRenderer[] = {
#embed MODULE(renderer/dom/DomRenderer.js)
};
static const unsigned char renderer_dom_DomRendererRowFactory[] = {
#embed MODULE(renderer/dom/DomRendererRowFactory.js)
};
static const unsigned char shared_atlas_CharAtlasGenerator[] = {
#embed MODULE(shared/atlas/CharAtlasGenerator.js)
};
static const unsigned char shared_atlas_Types[] = {
#embed MODULE(shared/atlas/Types.js)
};
static const unsigned char shared_utils_Browser[] = {
#embed MODULE(shared/utils/Browser.js)
};
static const unsigned char ui_CharMeasure[] = {
#embed MODULE(ui/CharMeasure.js)
};
static const unsigned char ui_Lifecycle[] = {
#embed MODULE(ui/Lifecycle.js)
};
static const unsigned char ui_MouseZoneManager[] = {
#embed MODULE(ui/MouseZoneManager.js)
};
static const unsigned char ui_RenderDebouncer[] = {
#embed MODULE(ui/RenderDebouncer.js)
};
static const unsigned char ui_ScreenDprMonitor[] = {
#embed MODULE(ui/ScreenDprMonitor.js)
};
static const unsigned char utils_Clone[] = {
#embed MODULE(utils/Clone.js)
};
static const unsigned char utils_MouseHelper[] = {
#embed MODULE(utils/MouseHelper.js)
};

static const struct admin_page_file style = {"/page/xterm.css", "text/css; charset=utf-8", xterm_css, sizeof xterm_css};

static const struct admin_page_file modules[] = {
    {"AccessibilityManager", "", AccessibilityManager, sizeof AccessibilityManager},
    {"Buffer", "", Buffer, sizeof Buffer},
    {"BufferLine", "", BufferLine, sizeof BufferLine},
    {"BufferSet", "", BufferSet, sizeof BufferSet},
    {"CharWidth", "", CharWidth, sizeof CharWidth},
    {"CompositionHelper", "", CompositionHelper, sizeof CompositionHelper},
    {"EscapeSequenceParser", "", EscapeSequenceParser, sizeof EscapeSequenceParser},
    {"InputHandler", "", InputHandler, sizeof InputHandler},
    {"Linkifier", "", Linkifier, sizeof Linkifier},
    {"SelectionManager", "", SelectionManager, sizeof SelectionManager},
    {"SelectionModel", "", SelectionModel, sizeof SelectionModel},
    {"SoundManager", "", SoundManager, sizeof SoundManager},
    {"Strings", "", Strings, sizeof Strings},
    {"Terminal", "", Terminal, sizeof Terminal},
    {"Viewport", "", Viewport, sizeof Viewport},
    {"common/CircularList", "", common_CircularList, sizeof common_CircularList},
    {"common/EventEmitter", "", common_EventEmitter, sizeof common_EventEmitter},
    {"common/Lifecycle", "", common_Lifecycle, sizeof common_Lifecycle},
    {"common/data/EscapeSequences", "", common_data_EscapeSequences, sizeof common_data_EscapeSequences},
    {"core/data/Charsets", "", core_data_Charsets, sizeof core_data_Charsets},
    {"core/input/Keyboard", "", core_input_Keyboard, sizeof core_input_Keyboard},
    {"handlers/AltClickHandler", "", handlers_AltClickHandler, sizeof handlers_AltClickHandler},
    {"handlers/Clipboard", "", handlers_Clipboard, sizeof handlers_Clipboard},
    {"public/Terminal", "", public_Terminal, sizeof public_Terminal},
    {"renderer/BaseRenderLayer", "", renderer_BaseRenderLayer, sizeof renderer_BaseRenderLayer},
    {"renderer/CharacterJoinerRegistry", "", renderer_CharacterJoinerRegistry, sizeof renderer_CharacterJoinerRegistry},
    {"renderer/ColorManager", "", renderer_ColorManager, sizeof renderer_ColorManager},
    {"renderer/CursorRenderLayer", "", renderer_CursorRenderLayer, sizeof renderer_CursorRenderLayer},
    {"renderer/GridCache", "", renderer_GridCache, sizeof renderer_GridCache},
    {"renderer/LinkRenderLayer", "", renderer_LinkRenderLayer, sizeof renderer_LinkRenderLayer},
    {"renderer/Renderer", "", renderer_Renderer, sizeof renderer_Renderer},
    {"renderer/SelectionRenderLayer", "", renderer_SelectionRenderLayer, sizeof renderer_SelectionRenderLayer},
    {"renderer/TextRenderLayer", "", renderer_TextRenderLayer, sizeof renderer_TextRenderLayer},
    {"renderer/atlas/BaseCharAtlas", "", renderer_atlas_BaseCharAtlas, sizeof renderer_atlas_BaseCharAtlas},
    {"renderer/atlas/CharAtlasCache", "", renderer_atlas_CharAtlasCache, sizeof renderer_atlas_CharAtlasCache},
    {"renderer/atlas/CharAtlasUtils", "", renderer_atlas_CharAtlasUtils, sizeof renderer_atlas_CharAtlasUtils},
    {"renderer/atlas/DynamicCharAtlas", "", renderer_atlas_DynamicCharAtlas, sizeof renderer_atlas_DynamicCharAtlas},
    {"renderer/atlas/LRUMap", "", renderer_atlas_LRUMap, sizeof renderer_atlas_LRUMap},
    {"renderer/atlas/NoneCharAtlas", "", renderer_atlas_NoneCharAtlas, sizeof renderer_atlas_NoneCharAtlas},
    {"renderer/atlas/StaticCharAtlas", "", renderer_atlas_StaticCharAtlas, sizeof renderer_atlas_StaticCharAtlas},
    {"renderer/atlas/Types", "", renderer_atlas_Types, sizeof renderer_atlas_Types},
    {"renderer/dom/DomRenderer", "", renderer_dom_DomRenderer, sizeof renderer_dom_DomRenderer},
    {"renderer/dom/DomRendererRowFactory", "", renderer_dom_DomRendererRowFactory, sizeof renderer_dom_DomRendererRowFactory},
    {"shared/atlas/CharAtlasGenerator", "", shared_atlas_CharAtlasGenerator, sizeof shared_atlas_CharAtlasGenerator},
    {"shared/atlas/Types", "", shared_atlas_Types, sizeof shared_atlas_Types},
    {"shared/utils/Browser", "", shared_utils_Browser, sizeof shared_utils_Browser},
    {"ui/CharMeasure", "", ui_CharMeasure, sizeof ui_CharMeasure},
    {"ui/Lifecycle", "", ui_Lifecycle, sizeof ui_Lifecycle},
    {"ui/MouseZoneManager", "", ui_MouseZoneManager, sizeof ui_MouseZoneManager},
    {"ui/RenderDebouncer", "", ui_RenderDebouncer, sizeof ui_RenderDebouncer},
    {"ui/ScreenDprMonitor", "", ui_ScreenDprMonitor, sizeof ui_ScreenDprMonitor},
    {"utils/Clone", "", utils_Clone, sizeof utils_Clone},
    {"utils/MouseHelper", "", utils_MouseHelper, sizeof utils_MouseHelper},
};

const struct admin_page_file *admin_page_terminal_style(void) { return &style; }

const struct admin_page_file *admin_page_terminal_module(size_t index) {
  return index < sizeof modules / sizeof modules[0] ? &modules[index] : NULL;
}

#else

const struct admin_page_file *admin_page_terminal_style(void) { return NULL; }
const struct admin_page_file *admin_page_terminal_module(size_t index) { return NULL; }

#endif
